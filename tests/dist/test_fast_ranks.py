"""Fast blocks on ranks: a share of every kind gives the flows of the whole model, in float32 and with
products in e4m3."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from millstream.core.speed import FP8_GROUPS, Speed
from millstream.core.topology import FRONT, Topology
from millstream.models.fast.apply import quicken
from millstream.parallel.groups import create_groups
from millstream.parallel.layers import StagedDiT
from tests.dist.calls import FOUR_HEADS, STREAMS, flows, shared_calls, whole_flows
from tests.dist.ranks import run_ranks
from tests.dist.spread import parallelise
from tests.unit.models_for_tests import dit, relative_error

FAST = Speed(blocks=True)
LOW = Speed(blocks=True, fp8=FP8_GROUPS)


def fast_flows(rank: int, name: str) -> dict[str, list[Tensor]] | None:
    topology = Topology.parse(name)
    groups = create_groups(topology, rank, timeout_s=60)
    if rank == FRONT:
        return None
    found = {}
    for speed in (FAST, LOW):
        share = parallelise(dit(FOUR_HEADS), topology, groups, speed=speed)
        found[str(speed)] = [*(flows(share, **stream) for stream in STREAMS), shared_calls(share)]
        if isinstance(share, StagedDiT):
            share.drain()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["front+tp2", "front+tp4", "front+sp2", "front+sp4", "front+pp2", "front+pp2xtp2"]
)
def test_ranks_with_fast_blocks_give_the_flows_of_the_whole_model(name: str) -> None:
    plain = [*whole_flows(), shared_calls(dit(FOUR_HEADS))]
    alone = quicken(dit(FOUR_HEADS), LOW)
    low = [*(flows(alone, **stream) for stream in STREAMS), shared_calls(alone)]
    costs = [relative_error(one, exact) for one, exact in zip(low, plain, strict=True)]
    _, *ranks = run_ranks(fast_flows, Topology.parse(name).world_size, name, timeout_s=180)
    for found in ranks:
        for made, exact, cost in zip(found[str(LOW)], plain, costs, strict=True):
            assert 0 < relative_error(made, exact) < 1.5 * cost, "e4m3 costs what it costs on one device"
        for made, exact in zip(found[str(FAST)], plain, strict=True):
            assert relative_error(made, exact) < 1e-5
    assert all(torch.equal(one, ranks[0][str(FAST)][0]) for one in (found[str(FAST)][0] for found in ranks))
