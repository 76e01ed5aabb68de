"""Tensor parallel over memory that all ranks reach: the flows of the whole model, and nothing of a block left
to collectives.

On a CPU that memory is files which all ranks map, and a barrier is a sum over gloo. Everybody dawdles after
it, each otherwise: who read too late or wrote too early would be seen.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from math import prod
from pathlib import Path

import pytest
import torch
from torch import Tensor

from millstream.core.speed import FP8_GROUPS, Speed
from millstream.core.topology import FRONT, Topology
from millstream.experiments.peer_memory import MakeBuffer, PeerBuffer, PeerMemory, find_peer_memory
from millstream.models.fast.apply import quicken
from millstream.parallel.collectives import RankGroup
from millstream.parallel.groups import create_groups
from tests.dist.calls import FOUR_HEADS, STREAMS, flows, shared_calls
from tests.dist.ranks import run_ranks
from tests.dist.spread import parallelise
from tests.unit.models_for_tests import dit, relative_error

FAST = Speed(blocks=True)
LOW = Speed(blocks=True, fp8=FP8_GROUPS)
DAWDLES_S = 2e-3


def mapped_files(group: RankGroup, folder: Path) -> MakeBuffer:
    made = iter(range(100))

    def meet() -> None:
        group.sum(torch.zeros(1), "barrier")
        time.sleep(DAWDLES_S * random.random())

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> PeerBuffer:
        number = next(made)
        size = prod(shape) * dtype.itemsize
        maps = [
            torch.from_file(str(folder / f"{number}-{place}"), shared=True, size=size, dtype=torch.uint8)
            for place in group.ranks
        ]
        return PeerBuffer([each.view(dtype).view(shape) for each in maps], meet)

    return make


def by_peers(rank: int, name: str, folder: Path) -> tuple[dict[Speed, list[Tensor]], Counter] | None:
    topology = Topology.parse(name)
    groups = create_groups(topology, rank, timeout_s=60)
    if rank == FRONT:
        return None
    random.seed(rank)
    peers = PeerMemory(mapped_files(groups.stage, folder))
    found = {}
    for speed in (FAST, LOW):
        share = parallelise(dit(FOUR_HEADS), topology, groups, speed=speed, peers=peers)
        groups.record.counts.clear()
        found[speed] = [flows(share, **STREAMS[0])]
        counts = Counter(groups.record.counts)
        found[speed].append(shared_calls(share))
    return found, counts


@pytest.mark.parametrize("name", ["front+tp2", pytest.param("front+tp4", marks=pytest.mark.slow)])
def test_sums_in_peers_memory_give_the_flows_of_the_whole_model_and_the_same_bits_on_every_rank(
    name: str, tmp_path: Path
) -> None:
    plain = dit(FOUR_HEADS)
    alone = quicken(dit(FOUR_HEADS), LOW)
    expected, low = ([flows(each, **STREAMS[0]), shared_calls(each)] for each in (plain, alone))
    _, *ranks = run_ranks(by_peers, Topology.parse(name).world_size, name, tmp_path, timeout_s=180)
    for found, counts in ranks:
        for made, exact, single in zip(found[LOW], expected, low, strict=True):
            assert 0 < relative_error(made, exact) < 1.5 * relative_error(single, exact), (
                "what e4m3 costs on one device"
            )
        for made, exact in zip(found[FAST], expected, strict=True):
            assert relative_error(made, exact) < 1e-5
        assert all(
            torch.equal(*pair)
            for speed in found
            for pair in zip(found[speed], ranks[0][0][speed], strict=True)
        )
        between = [(kind, what) for kind in ("scatter", "collect") for what in ("attention", "mlp")]
        met = sum(counts[each] for each in (*between, ("sum", "norms")))
        assert counts["sum", "barrier"] == met, "every sum and every collect between products is a meeting"
        assert counts["collect", "scales"] == 0, "scales are written with their rows"


def test_ranks_without_nccl_have_no_peer_memory_and_hear_why() -> None:
    alone = RankGroup("stage0", "mesh", (1,), 1, None)
    assert find_peer_memory(alone, torch.device("cpu")) == "it needs several ranks that speak NCCL"


def test_a_buffer_that_others_may_still_read_is_not_met_for_again() -> None:
    peers = PeerMemory(lambda shape, dtype: PeerBuffer([torch.zeros(shape, dtype=dtype)], lambda: None))
    rows, sums = (peers.buffer(name, (2, 3), torch.float32) for name in ("rows", "sums"))
    for buffer in (rows, sums, rows):
        peers.meeting(buffer)
    with pytest.raises(AssertionError, match="may still read"):
        peers.meeting(rows)
