"""Sequence parallel over real processes: the same flows with tokens that do not divide, and a cache of fewer heads."""

from __future__ import annotations

from millstream.core.topology import FRONT, Topology
from millstream.parallel.apply import parallelise
from millstream.parallel.groups import create_groups
from tests.dist.calls import FOUR_HEADS, STREAMS, flows, whole_flows
from tests.dist.ranks import run_ranks
from tests.dist.streams import steered_locally, steered_on
from tests.unit.models_for_tests import dit, relative_error


def calls_of_a_share(rank: int, name: str) -> tuple | None:
    topology = Topology.parse(name)
    groups = create_groups(topology, rank, timeout_s=30)
    if rank == FRONT:
        return None
    share = parallelise(dit(FOUR_HEADS), topology, groups)
    found = [flows(share, **stream) for stream in STREAMS]
    return found, dict(groups.record.counts), share.cached_heads


def test_each_rank_has_its_tokens_and_all_get_the_flows_of_the_whole_model() -> None:
    expected = whole_flows()
    _, *ranks = run_ranks(calls_of_a_share, 5, "front+sp4")
    calls, layers = 4 * len(STREAMS), FOUR_HEADS.layers
    for found, counts, heads in ranks:
        assert [relative_error(*pair) < 1e-5 for pair in zip(found, expected, strict=True)] == [True, True]
        assert heads == 1
        assert counts["exchange", "tokens for heads"] == calls * 2 * layers
        assert counts["exchange", "heads for tokens"] == calls * (2 * layers - 1)
        assert counts["collect", "cells"] == calls


def test_fifty_chunks_with_switches_and_a_cut_stay_with_the_local_stream() -> None:
    _, *ranks = run_ranks(steered_on, 3, "front+sp2", timeout_s=90)
    for found in ranks:
        assert relative_error(found[:1], steered_locally()[:1]) < 1e-5
        assert relative_error(found, steered_locally()) < 1e-3
