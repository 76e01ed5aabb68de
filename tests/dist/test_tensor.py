"""Tensor parallel over real processes: the same flows, the promised number of collectives, a cache of fewer
heads."""

from __future__ import annotations

from dataclasses import replace

import torch

from millstream.core.presets import MODELS
from millstream.core.topology import FRONT, Topology
from millstream.models.dit import CausalDiT
from millstream.parallel.groups import create_groups
from millstream.planner.footprint import rank_parameters
from tests.dist.calls import FOUR_HEADS, STREAMS, flows, ring_for, whole_flows
from tests.dist.ranks import run_ranks
from tests.dist.spread import parallelise
from tests.dist.streams import stays_with_local, steered_on
from tests.unit.models_for_tests import dit, relative_error

SHAPED_AS_14B = replace(
    MODELS["wan2.1-t2v-14b"].dit, width=160, ffn=432, channels=4, text_width=24, time_features=32
)
"""Its layers and heads, thinner."""


def calls_of_a_share(rank: int, name: str) -> tuple | None:
    topology = Topology.parse(name)
    groups = create_groups(topology, rank, timeout_s=60)
    if rank == FRONT:
        return None
    share = parallelise(dit(FOUR_HEADS), topology, groups)
    found = [flows(share, **stream) for stream in STREAMS]
    big = parallelise(CausalDiT(SHAPED_AS_14B).requires_grad_(False), topology, groups)
    ring = ring_for(big, window=3, sink=0)
    ring.place([0, 1, 2])
    latents = torch.zeros(1, 3, 4, 6, 6)
    level = torch.zeros(1, 3)
    cross = big.read_prompt(torch.zeros(1, 7, 24))
    counts = []
    for call in (big, big.commit):
        groups.record.counts.clear()
        call(latents, level, ring, cross)
        counts.append(dict(groups.record.counts))
    shapes = {name: tuple(parameter.shape) for name, parameter in share.dit.blocks[0].named_parameters()}
    return found, counts, shapes, ring.shape.heads, parameters_of_every_call(share.dit)


def parameters_of_every_call(model: CausalDiT) -> int:
    """Of products in blocks; a prompt's keys and values are made once."""
    once = ("cross_attn.k.weight", "cross_attn.v.weight")
    named = model.blocks.named_parameters()
    return sum(
        parameter.numel() for name, parameter in named if parameter.ndim == 2 and not name.endswith(once)
    )


def test_each_rank_has_its_share_and_all_get_the_flows_of_the_whole_model() -> None:
    expected = whole_flows()
    _, *ranks = run_ranks(calls_of_a_share, 5, "front+tp4")
    planned, _ = rank_parameters(FOUR_HEADS, Topology.parse("front+tp4"))
    for found, _, shapes, heads, products in ranks:
        assert [relative_error(*pair) < 1e-5 for pair in zip(found, expected, strict=True)] == [True, True]
        assert shapes["self_attn.q.weight"] == (12, 48)
        assert shapes["self_attn.o.weight"] == (48, 12)
        assert shapes["ffn.down.weight"] == (48, 20)
        assert heads == 10
        assert products == planned, "the planner counts what a rank holds"
    for found, *_ in ranks[1:]:
        assert all(torch.equal(mine, leaders) for mine, leaders in zip(found, ranks[0][0], strict=True)), (
            "in lockstep to the bit"
        )
    for _, (called, committed), *_ in ranks:
        assert called == {("sum", "attention"): 40, ("sum", "mlp"): 40, ("sum", "norms"): 40}
        assert committed == {("sum", "attention"): 39, ("sum", "mlp"): 39, ("sum", "norms"): 40}


def test_fifty_chunks_with_switches_and_a_cut_stay_with_the_local_stream() -> None:
    _, *ranks = run_ranks(steered_on, 3, "front+tp2", timeout_s=90)
    for found in ranks:
        stays_with_local(found)
