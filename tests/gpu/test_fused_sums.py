"""Sums and collects in memory that several ranks reach, on one GPU: the kernel with buffers of the same card
as its peers, and two processes on one card with torch's symmetric memory between them. Between cards:
`tests/gpu/multi`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from millstream.core.topology import FRONT, Topology
from millstream.experiments.peer_memory import PeerMemory, symmetric_memory
from millstream.models.fast.apply import quicken
from millstream.ops.backend import only_twins
from millstream.ops.fp8 import E4M3, Rows8
from millstream.ops.frame_rows import RowsOfFrames
from millstream.ops.rows import add_gated, add_norm
from millstream.parallel.groups import create_groups
from tests.dist.calls import STREAMS, flows
from tests.dist.ranks import run_ranks
from tests.dist.spread import parallelise
from tests.gpu.test_mesh_on_one_gpu import SPEEDS, WIDE
from tests.unit.models_for_tests import dit, relative_error

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the libraries that compile kernels
]

GPU = torch.device("cuda")
BF16 = torch.bfloat16
SHAPES = {"1.3B 480x832": (1560, 1536), "14B 320x576": (720, 5120)}
"""Tokens of a frame, width."""
FRAMES = 3


def restored(rows: Tensor | Rows8) -> Tensor:
    return rows.restored() if isinstance(rows, Rows8) else rows.float()


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_sums_everybodys_parts_of_its_rows_and_writes_to_everybody(
    shape: str, ranks: int, fp8: bool
) -> None:
    """The last rank's rows, which may begin within a frame. Buffers hold NaN where it may not read."""
    tokens, width = SHAPES[shape]
    share = FRAMES * tokens // ranks
    generator = torch.Generator(GPU).manual_seed(ranks)
    rows = RowsOfFrames(tokens, (ranks - 1) * share)

    def random(*size: int) -> Tensor:
        return torch.randn(size, device=GPU, generator=generator).to(BF16)

    x = random(share, width)
    levels = random(FRAMES, 6, width)
    sums = torch.full((ranks, FRAMES * tokens, width), torch.nan, device=GPU, dtype=BF16)
    parts = [whole.narrow(0, rows.first, share).copy_(random(share, width)) for whole in sums]

    def everything() -> list[Tensor]:
        whole = torch.zeros(ranks, FRAMES * tokens, width, device=GPU, dtype=E4M3 if fp8 else BF16)
        scales = torch.zeros(ranks, FRAMES * tokens, 1, device=GPU)
        kept = x.clone()
        added = x.clone()
        mine = [each.narrow(0, rows.first, share) for each in whole]
        outs = (
            [Rows8(*each) for each in zip(mine, scales.narrow(1, rows.first, share), strict=True)]
            if fp8
            else mine
        )
        add_norm(
            kept, parts, levels[:, 2], levels[:, 1], levels[:, 0], eps=1e-6, fp8=fp8, rows=rows, outs=outs
        )
        add_gated(added, parts, levels[:, 2], rows)
        assert torch.equal(kept, added)
        assert all(torch.equal(restored(out), restored(outs[0])) for out in outs), (
            "the same bits for every rank"
        )
        assert not whole.view(torch.uint8)[:, : rows.first].any(), "rows of other ranks are left alone"
        return [kept.float(), restored(outs[0])]

    found = everything()
    with only_twins():
        expected = everything()
    for ours, twins, tolerance in zip(found, expected, (4e-3, 0.02 if fp8 else 4e-3), strict=True):
        assert relative_error(ours, twins) <= tolerance


def by_peers(rank: int) -> dict[str, list[Tensor]] | None:
    topology = Topology.parse("front+tp2")
    groups = create_groups(topology, rank, timeout_s=60)
    if rank == FRONT:
        return None
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = (
        "1"  # ranks share the card here, and the barrier is the real one
    )
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    peers = PeerMemory(symmetric_memory(groups.stage, device))
    found = {}
    for precision, speed in SPEEDS.items():
        share = parallelise(dit(WIDE).to(device, BF16), topology, groups, speed=speed, peers=peers)
        found[precision] = [flows(share, **stream).float().cpu() for stream in STREAMS]
        assert groups.record.counts["collect", "scales"] == 0
    return found


def test_two_processes_on_one_card_sum_in_each_others_memory_as_one_device_computes() -> None:
    exact = [flows(dit(WIDE), **stream) for stream in STREAMS]
    _, *ranks = run_ranks(by_peers, 3, timeout_s=140)
    for precision, speed in SPEEDS.items():
        alone = [flows(quicken(dit(WIDE).to(GPU, BF16), speed), **stream).float().cpu() for stream in STREAMS]
        for found in ranks:
            for mesh, same, single, wanted in zip(
                found[precision], ranks[0][precision], alone, exact, strict=True
            ):
                assert torch.equal(mesh, same), "the same bits on both ranks"
                assert relative_error(mesh, single) < 1.5 * relative_error(single, wanted)


def test_meetings_are_recorded_in_a_graph_and_replayed() -> None:
    """With one rank, NCCL and symmetric memory: in a process of its own, whose end is part of it."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gpu.nccl_alone", "peers"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    answer = json.loads(ended.stdout.splitlines()[-1])
    assert answer["error"] < 1e-3, "one rank's sums change nothing"
    assert answer["recordings"] >= 2, "steps and commits"
