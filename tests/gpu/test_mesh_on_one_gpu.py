"""Ranks that share one GPU: gloo through pinned host memory, the same flows as the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from millstream.core.speed import ALL, FP8_GROUPS, of_generator
from millstream.core.topology import FRONT, Topology
from millstream.experiments.rebalance import HeldCache, move_layers
from millstream.models.fast.apply import quicken
from millstream.parallel.groups import Groups, create_groups
from millstream.parallel.layers import StagedDiT
from tests.dist.calls import FOUR_HEADS, STREAMS, flows, ring_for, whole_flows
from tests.dist.ranks import run_ranks
from tests.dist.spread import parallelise
from tests.unit.models_for_tests import dit, relative_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on_the_gpu(rank: int, name: str) -> list[Tensor] | None:
    topology = Topology.parse(name)
    groups = create_groups(topology, rank, timeout_s=60)
    if rank == FRONT:
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    share = parallelise(dit(FOUR_HEADS).to("cuda"), topology, groups)
    found = [flows(share, **stream).cpu() for stream in STREAMS]
    if isinstance(share, StagedDiT):
        share.drain()
    return found


WIDE = replace(FOUR_HEADS, width=512, ffn=1024)
"""Heads of 128, as Wan's."""
SPEEDS = {"bf16": of_generator(ALL), "fp8": of_generator(replace(ALL, fp8=FP8_GROUPS))}


def fast_shares(rank: int, name: str) -> Iterator[tuple[str, Any, Groups]]:
    """One after the other, of each precision, and the groups they speak on; none on the front."""
    topology = Topology.parse(name)
    groups = create_groups(topology, rank, timeout_s=60)
    if rank != FRONT:
        for precision, speed in SPEEDS.items():
            yield (
                precision,
                parallelise(dit(WIDE).to("cuda", torch.bfloat16), topology, groups, speed=speed),
                groups,
            )


def fast_on_the_gpu(rank: int, name: str) -> dict[str, list[Tensor]]:
    found = {}
    for precision, share, _ in fast_shares(rank, name):
        found[precision] = [flows(share, **stream).float().cpu() for stream in STREAMS]
        if isinstance(share, StagedDiT):
            share.drain()
    return found


@pytest.mark.parametrize("name", ["front+tp2", "front+sp2", "front+pp2", "front+pp2xtp2"])
def test_fast_ranks_on_one_gpu_are_as_near_to_float32_as_one_fast_device(name: str) -> None:
    exact = [flows(dit(WIDE), **stream) for stream in STREAMS]
    _, *ranks = run_ranks(fast_on_the_gpu, Topology.parse(name).world_size, name, timeout_s=180)
    for precision, speed in SPEEDS.items():
        alone = [
            flows(quicken(dit(WIDE).to("cuda", torch.bfloat16), speed), **stream).float().cpu()
            for stream in STREAMS
        ]
        for found in ranks:
            for mesh, single, wanted in zip(found[precision], alone, exact, strict=True):
                cost = relative_error(single, wanted)
                assert 0 < relative_error(mesh, wanted) < 1.25 * cost
                assert relative_error(mesh, single) < 1.5 * cost


def recorded_blocks_move(rank: int, name: str) -> dict[str, tuple[Tensor, Tensor, list[int]]]:
    """Flows of a window that fills and stays full, before and after a layer has changed stages with a
    session's ring; and how many calls were recorded at each time."""
    found = {}
    for precision, share, groups in fast_shares(rank, name):
        made = []
        recorded = []
        for bounds in ((0, 1, 3), (0, 2, 3)):
            if bounds != share.bounds:
                ring = ring_for(share, window=6, sink=0)
                (held,) = move_layers(share, bounds, [HeldCache(ring, None)])
                assert held.ring.shape.layers == share.cached_layers == (2, 1)[groups.lane.place]
                recorded.append(len(share.dit.blocks._recordings))
            made.append(flows(share, chunks=14, window=6, sink=0).float().cpu())
            recorded.append(len(share.dit.blocks._recordings))
            share.drain()
        found[precision] = (*made, recorded)
    return found


def test_fast_blocks_that_change_stages_are_recorded_anew_and_compute_the_same_bits() -> None:
    _, *ranks = run_ranks(recorded_blocks_move, 3, "front+pp2", timeout_s=180)
    for found in ranks:
        for before, after, recorded in found.values():
            assert torch.equal(before, after)
            assert recorded[0] > 0 == recorded[1] < recorded[2], (
                f"recordings before, between and after: {recorded}"
            )


@pytest.mark.parametrize("name", ["front+tp2", "front+sp2", "front+pp2"])
def test_ranks_on_one_gpu_give_the_flows_of_the_whole_model(name: str) -> None:
    expected = whole_flows()
    _, *ranks = run_ranks(on_the_gpu, 3, name, timeout_s=180)
    for found in ranks:
        assert [relative_error(*pair) < 1e-4 for pair in zip(found, expected, strict=True)] == [True, True]
