"""The same ranks under torchrun, on one machine and on two; and what is said when they cannot work together."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from millstream.cli.main import app
from millstream.core.errors import ConfigError, DeviceError, MeshError
from millstream.core.topology import Topology
from millstream.mesh.rendezvous import Rendezvous, MeetingPoint
from millstream.session.journal import read_journal
from millstream.mesh.launch import Placement, placement
from millstream.mesh.config import MeshConfig, MeshLimits
from millstream.mesh.rank import GLOO, NCCL, rank_device
from millstream.mesh.startup import differences, facts_of
from tests.dist.meshes import mesh_engine

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
GENERATE = ["-m", "millstream", "generate", "sea", "--model", "wan-tiny", "--weights", "random:3", "--device", "cpu"]
GENERATE += ["--dtype", "float32", "--size", "32x48", "--window", "6", "--seed", "1", "--chunks", "3", "--quiet"]
QUIETLY = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
PATIENCE_S = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def started(words: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ | QUIETLY | environment)


def test_torchrun_starts_the_same_ranks_and_they_make_the_same_bits(tmp_path: Path) -> None:
    out = ["--topology", "front+tp2", "--out", str(tmp_path / "clip.mp4"), "--journal", str(tmp_path / "run.jsonl")]
    under = started([*TORCHRUN, "--nproc-per-node", "3", "--master-port", str(free_port()), *GENERATE, *out])
    _, errors = under.communicate(timeout=PATIENCE_S)
    assert under.returncode == 0, errors
    assert (tmp_path / "clip.mp4").exists()
    made = [line.digest for line in read_journal(tmp_path / "run.jsonl").chunks]
    with mesh_engine() as engine:
        ours = [chunk.digest for chunk in engine.session("sea", seed=1, height=32, width=48, window=6).stream(len(made))]
    assert made == ours


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_wrong_number_of_ranks_is_said_by_every_rank_at_once(rank: str, tmp_path: Path) -> None:
    two = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    words = [*GENERATE[2:], "--topology", "front+tp2", "--out", str(tmp_path / "clip.mp4")]
    done = CliRunner().invoke(app, words, env=two)
    assert done.exit_code == 2
    assert "front+tp2 needs 3 ranks, the front among them; 2 were started" in done.output
    assert list(tmp_path.iterdir()) == []


@contextmanager
def two_machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a wire between them: 10.77.0.1 and 10.77.0.2."""
    names = f"ms{os.getpid()}a", f"ms{os.getpid()}b"
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("link", "add", "msw0", "netns", names[0], "type", "veth", "peer", "name", "msw0", "netns", names[1])
        for number, name in enumerate(names, start=1):
            _ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "msw0")
            _ip("-n", name, "link", "set", "msw0", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no network namespaces here: ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and ip")
def test_two_machines_make_one_stream(tmp_path: Path) -> None:
    """The front on one, a mesh of two on the other."""

    def machine(name: str, number: int, *more: str) -> subprocess.Popen[str]:
        torchrun = [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", str(number + 1), "--node-rank", str(number)]
        torchrun += ["--master-addr", "10.77.0.1", "--master-port", "29577"]
        words = ["ip", "netns", "exec", name, *torchrun, *GENERATE, "--topology", "front+tp2", *more]
        return started(words, GLOO_SOCKET_IFNAME="msw0")

    with two_machines() as names:
        out = ["--out", str(tmp_path / "clip.mp4")]
        ranks = [machine(name, number, *out) for number, name in enumerate(names)]
        errors = [rank.communicate(timeout=PATIENCE_S)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], errors
        assert (tmp_path / "clip.mp4").exists()


CONFIG = MeshConfig(topology=Topology.parse("front+tp2"), model="wan-tiny", weights=("random",), device="cpu", dtype="float32",
                    threads=1)  # fmt: skip


def test_a_port_that_is_taken_and_a_peer_that_does_not_answer_are_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MeshError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            Rendezvous.host(port=port)
    with pytest.raises(MeshError, match=r"nobody answers at 127.0.0.1:9 within 1 s; is the front running and reachable"):
        Rendezvous.join(MeetingPoint(host="127.0.0.1", port=9), timeout_s=1.0)


def test_a_rank_that_does_not_come_is_named_after_the_timeout() -> None:
    rendezvous = Rendezvous.host()
    rendezvous.post("start/0", {})
    with pytest.raises(MeshError, match=r"rank 1, 2 did not come within 0.2 s"):
        rendezvous.collect("start", range(3), timeout_s=0.2)
    rendezvous.fail(2, "no weights")
    rendezvous.fail(2, "a later word")
    with pytest.raises(MeshError, match="rank 2: no weights"):
        rendezvous.collect("start", range(3), timeout_s=5.0)


def test_mismatched_versions_and_weights_are_differences() -> None:
    mine = facts_of(CONFIG, GLOO) | {"weights": "abc"}
    assert differences({0: facts_of(CONFIG, GLOO), 1: mine, 2: mine}) == []
    found = differences({0: facts_of(CONFIG, GLOO), 1: mine, 2: mine | {"millstream": "9.9", "weights": "abd"}})
    assert len(found) == 2
    assert "rank 2 has 9.9" in found[0]
    assert found[1] == "weights: rank 1 has abc; rank 2 has abd"


def test_a_missing_gpu_is_said_before_anybody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(DeviceError, match="no GPU is here"):
        rank_device(replace(CONFIG, device="cuda"), 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert rank_device(replace(CONFIG, device="cuda"), 2) == (torch.device("cuda", 2), NCCL)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert rank_device(replace(CONFIG, device="cuda"), 2) == (torch.device("cuda", 0), GLOO)


def test_what_torchrun_sets_is_read_and_half_of_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert placement() is None
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="start with torchrun"):
        placement()
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    found = placement()
    assert isinstance(found, Placement)
    assert (found.rank, found.world_size, found.local_rank) == (1, 3, 1)
    found.check(Topology.parse("front+tp2"))
    with pytest.raises(ConfigError, match="3 ranks were started for local"):
        found.check(Topology.parse("local"))


def test_limits_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(ConfigError, match="two heartbeats"):
        MeshLimits(heartbeat_s=2.0, window_s=3.0)
