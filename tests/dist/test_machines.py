"""The same ranks under torchrun, on one machine and on two; and what is said when they cannot work
together."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.core.errors import ConfigError, DeviceError, MeshError
from millstream.core.mesh_limits import MeshLimits
from millstream.core.topology import Topology
from millstream.engine.engine import Engine
from millstream.mesh.config import MeshConfig
from millstream.mesh.launch import Placement, joiner, launcher, placement
from millstream.mesh.rank import GLOO, NCCL, rank_device
from millstream.mesh.rendezvous import MeetingPoint, Rendezvous
from millstream.mesh.startup import differences, facts_of
from millstream.session.journal import read_journal
from tests.dist.meshes import MODEL, mesh_engine

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
GENERATE = [
    "-m",
    "millstream",
    "generate",
    "sea",
    "--model",
    "wan-tiny",
    "--weights",
    "random:3",
    "--device",
    "cpu",
]
GENERATE += [
    "--dtype",
    "float32",
    "--size",
    "16x32",
    "--window",
    "6",
    "--seed",
    "1",
    "--chunks",
    "3",
    "--quiet",
]
QUIETLY = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
PATIENCE_S = 120.0
MEETING = ["--rdzv-conf", "timeout=60"]
"""For torchruns to find each other; by default they wait for 15 minutes."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def started(words: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ | QUIETLY | environment)


def test_torchrun_starts_the_same_ranks_and_they_make_the_same_bits(tmp_path: Path) -> None:
    out = [
        "--topology",
        "front+tp2",
        "--out",
        str(tmp_path / "clip.mp4"),
        "--journal",
        str(tmp_path / "run.jsonl"),
    ]
    under = started([*TORCHRUN, "--nproc-per-node", "3", "--master-port", str(free_port()), *GENERATE, *out])
    _, errors = under.communicate(timeout=PATIENCE_S)
    assert under.returncode == 0, errors
    assert (tmp_path / "clip.mp4").exists()
    made = [line.digest for line in read_journal(tmp_path / "run.jsonl").chunks]
    with mesh_engine() as engine:
        ours = [
            chunk.digest
            for chunk in engine.session("sea", seed=1, height=16, width=32, window=6).stream(len(made))
        ]
    assert made == ours


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_wrong_number_of_ranks_is_said_by_every_rank_at_once(rank: str, tmp_path: Path) -> None:
    two = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    words = [*GENERATE[2:], "--topology", "front+tp2", "--out", str(tmp_path / "clip.mp4")]
    done = CliRunner().invoke(app, words, env=two)
    assert done.exit_code == 2
    assert "front+tp2 needs 3 ranks, the front among them; 2 were started" in done.output
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_is_said_in_one_line_before_anything_is_loaded(tmp_path: Path) -> None:
    words = [*GENERATE[2:], "--out", str(tmp_path / "clip.mp4"), "--topology"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        front = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for topology, environment, said in (
            ("front+tp3", {}, "tp3 does not divide 2 heads and an MLP of 96; tp may be 1, 2"),
            ("front+tp2", front, f"cannot listen on 127.0.0.1:{port}: Address already in use"),
        ):
            done = CliRunner().invoke(app, [*words, topology], env=environment)
            assert done.exit_code == 2
            assert said in done.output
            assert len(done.output.strip().splitlines()) == 1, done.output
    assert list(tmp_path.iterdir()) == []


def test_a_front_whose_ranks_never_come_says_so_and_ends() -> None:
    meeting = MeetingPoint(host="127.0.0.1", port=free_port(), restarts_left=3)
    place = Placement(rank=0, world_size=3, local_rank=0, meeting=meeting, agent_hosts=False)
    limits = MeshLimits(heartbeat_s=0.1, window_s=0.5, start_s=1.0, hang_s=5.0)
    with pytest.raises(MeshError, match=r"^rank 1, 2 did not come within 1 s \(start\)$"):
        Engine("wan-tiny", **MODEL, topology=Topology.parse("front+tp2"), limits=limits, launch=joiner(place))


@contextmanager
def one_machine() -> Iterator[tuple[str, ...]]:
    yield ()


@contextmanager
def two_machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a wire between them: 10.77.0.1 and 10.77.0.2. They need root and ip."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("no network namespaces here: they need root and ip")
    names = f"ms{os.getpid()}a", f"ms{os.getpid()}b"
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip(
            "link",
            "add",
            "msw0",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "msw0",
            "netns",
            names[1],
        )
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machines", "topology", "ranks"), [(one_machine, "front+1", 1), (two_machines, "front+tp2", 2)]
)
def test_a_rank_that_is_lost_under_torchrun_is_replaced_and_the_stream_goes_on(
    machines: Callable[[], AbstractContextManager[Sequence[str]]], topology: str, ranks: int, tmp_path: Path
) -> None:
    """The front under one torchrun, the mesh under another, which starts its ranks again. The last one is
    lost."""
    journal = tmp_path / "run.jsonl"
    out = [
        "--topology",
        topology,
        "--chunks",
        "12",
        "--out",
        str(tmp_path / "clip.mp4"),
        "--journal",
        str(journal),
    ]

    def machine(number: int, names: Sequence[str], address: str, port: int) -> subprocess.Popen[str]:
        torchrun = [
            *TORCHRUN,
            "--nnodes",
            "2",
            "--nproc-per-node",
            str(ranks if number else 1),
            "--node-rank",
            str(number),
        ]
        torchrun += ["--master-addr", address, "--master-port", str(port), "--max-restarts", "3", *MEETING]
        inside = ["ip", "netns", "exec", names[number]] if names else []
        return started([*inside, *torchrun, *GENERATE, *out], GLOO_SOCKET_IFNAME="msw0" if names else "lo")

    with machines() as names:
        address, port = ("10.77.0.1", 29577) if names else ("127.0.0.1", free_port())
        front, mesh = (machine(number, names, address, port) for number in (0, 1))
        try:
            until(lambda: journal.exists() and len(journal.read_text().splitlines()) > 3, front)
            os.kill(process_of(ranks, mesh.pid), signal.SIGKILL)
            errors = [each.communicate(timeout=PATIENCE_S)[1] for each in (front, mesh)]
        finally:
            front.kill()
            mesh.kill()
    assert [front.returncode, mesh.returncode] == [0, 0], errors
    assert "the mesh is back after" in errors[0]
    envelopes = [line.envelope for line in read_journal(journal).chunks]
    assert [each.chunk_index for each in envelopes] == list(range(12)), "none twice, none left out"
    assert [each.init_cache for each in envelopes].count(True) == 2, (
        "at the beginning, and where the mesh was another"
    )


def until(holds: Callable[[], bool], front: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it never came to be"
        assert front.poll() is None, front.communicate()[1]
        time.sleep(0.02)


def process_of(rank: int, torchrun: int) -> int:
    children = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
    (found,) = [
        int(pid)
        for pid in children
        if f"\0RANK={rank}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    ]
    return found


@given(st.lists(st.integers(0, 2), max_size=30))
@settings(max_examples=30)
def test_whoever_starts_again_and_again_in_whichever_order_all_come_to_the_same_mesh(
    starts: list[int],
) -> None:
    board = Rendezvous.host()
    boards = {rank: board.take_turn(rank, 3) for rank in (0, 1, 2)}
    for rank in starts:
        boards[rank] = board.take_turn(rank, 3)
    while behind := [rank for rank in boards if boards[rank].is_past()]:
        before = boards[behind[0]].meeting.incarnation
        boards[behind[0]] = board.take_turn(behind[0], 3)
        assert boards[behind[0]].meeting.incarnation > before, "nothing of an earlier one is read"
    assert len({each.meeting.incarnation for each in boards.values()}) == 1


def test_ranks_that_torchrun_does_not_start_again_are_not_waited_for() -> None:
    board = Rendezvous.host()
    ranks = {
        rank: Rendezvous.join(replace(board.meeting, restarts_left=left), timeout_s=5)
        for rank, left in ((1, 0), (2, 3))
    }
    mesh = board.take_turn(0, 3).meeting.incarnation
    assert board.never_again(mesh, (1, 2), waited=False) == []
    assert board.never_again(mesh, (1, 2), waited=True) == [1, 2], "they did not come"
    for rank, each in ranks.items():
        each.take_turn(rank, 3)
    assert board.never_again(mesh, (1, 2), waited=True) == [1], "the last of its restarts"


CONFIG = MeshConfig(topology=Topology.parse("front+tp2"), model="wan-tiny", weights=("random",), device="cpu", dtype="float32",
                    threads=1)  # fmt: skip


def test_a_port_that_is_taken_and_a_peer_that_does_not_answer_are_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MeshError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            Rendezvous.host(port=port)
    with pytest.raises(
        MeshError, match=r"nobody answers at 127.0.0.1:9 within 1 s; is the front running and reachable"
    ):
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
    found = differences(
        {0: facts_of(CONFIG, GLOO), 1: mine, 2: mine | {"millstream": "9.9", "weights": "abd"}}
    )
    assert len(found) == 2
    assert "rank 2 has 9.9" in found[0]
    assert found[1] == "weights: rank 1 has abc; rank 2 has abd"


def test_a_front_that_was_told_of_other_weights_than_its_ranks_is_a_difference_and_files_may_lie_elsewhere() -> (
    None
):
    front, mesh = (facts_of(replace(CONFIG, weights=(each,)), GLOO) for each in ("random:3", "random:4"))
    assert differences({0: front, 1: mesh}) == ["weights from: rank 0 has random:3; rank 1 has random:4"]
    front, mesh = (facts_of(replace(CONFIG, weights=(each,)), GLOO) for each in ("/here/wan", "/there/wan"))
    assert differences({0: front, 1: mesh}) == []


def test_a_missing_gpu_is_said_before_anybody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(DeviceError, match="no GPU is here"):
        rank_device(replace(CONFIG, device="cuda"), 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert rank_device(replace(CONFIG, device="cuda"), 2) == (torch.device("cuda", 2), NCCL)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert rank_device(replace(CONFIG, device="cuda"), 2) == (torch.device("cuda", 0), GLOO)


def test_fewer_gpus_than_a_topology_is_for_are_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    launcher(replace(CONFIG, device="cuda"))
    assert not caplog.records
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    launcher(replace(CONFIG, device="cuda"))
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("front+tp2 is for 3 GPUs and 2 are here: ranks share them")


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
    for typed in ("start=0", "hang=nan", "start=inf"):
        with pytest.raises(ConfigError, match="above 0 and at most 86400 seconds"):
            MeshLimits.parse(typed)
    for typed in ("start", "sart=9", "start=soon", "9", "start=1,,hang=2"):
        with pytest.raises(
            ConfigError,
            match="seconds of heartbeat, window, start, hang, stop, for example start=900,hang=300",
        ):
            MeshLimits.parse(typed)


def test_limits_are_typed_as_seconds_by_name() -> None:
    assert MeshLimits.parse("") == MeshLimits()
    assert MeshLimits.parse("start=900, hang=0.5") == MeshLimits(start_s=900.0, hang_s=0.5)
