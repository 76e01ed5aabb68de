"""Sequence parallel over real processes: the same flows with tokens that do not divide, and a cache of fewer
heads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.core.errors import ConfigError
from millstream.core.topology import FRONT, Topology
from millstream.experiments.exchange_groups import overlap_exchange
from millstream.parallel.collectives import RankGroup
from millstream.parallel.groups import create_groups
from tests.dist.calls import FOUR_HEADS, STREAMS, flows, whole_flows
from tests.dist.ranks import run_ranks
from tests.dist.spread import parallelise
from tests.dist.streams import stays_with_local, steered_on
from tests.unit.models_for_tests import dit, relative_error


def calls_of_a_share(rank: int, name: str) -> tuple | None:
    topology = Topology.parse(name)
    groups = create_groups(topology, rank, timeout_s=60)
    if rank == FRONT:
        return None
    share = parallelise(dit(FOUR_HEADS), topology, groups)
    found = [flows(share, **stream) for stream in STREAMS]
    return found, dict(groups.record.counts), share.cached_heads


def test_each_rank_has_its_tokens_and_all_get_the_flows_of_the_whole_model() -> None:
    expected = whole_flows()
    _, *ranks = run_ranks(calls_of_a_share, 5, "front+sp4")
    calls = 4 * len(STREAMS)
    layers = FOUR_HEADS.layers
    for found, counts, heads in ranks:
        assert [relative_error(*pair) < 1e-5 for pair in zip(found, expected, strict=True)] == [True, True]
        assert heads == 1
        assert counts["exchange", "tokens for heads"] == calls * 2 * layers
        assert counts["exchange", "heads for tokens"] == calls * (2 * layers - 1)
        assert counts["collect", "cells"] == calls


EIGHT_HEADS = replace(FOUR_HEADS, width=96, heads=8)


def overlapped_calls(rank: int, name: str) -> tuple | None:
    topology = Topology.parse(name)
    groups = create_groups(topology, rank, timeout_s=60)
    if rank == FRONT:
        return None
    share = parallelise(dit(EIGHT_HEADS), topology, groups, exchange_groups=2)
    found = [flows(share, **stream) for stream in STREAMS]
    return found, dict(groups.record.counts)


def test_heads_that_travel_while_others_are_projected_arrive_the_same() -> None:
    expected = [flows(dit(EIGHT_HEADS), **stream) for stream in STREAMS]
    _, *ranks = run_ranks(overlapped_calls, 3, "front+sp2")
    calls = 4 * len(STREAMS)
    layers = EIGHT_HEADS.layers
    for found, counts in ranks:
        assert [relative_error(*pair) < 1e-5 for pair in zip(found, expected, strict=True)] == [True, True]
        assert counts["exchange", "tokens for heads"] == calls * 2 * layers * 2, "two groups a layer"
        assert counts["collect", "norms"] == calls * 2 * layers


def test_heads_make_only_groups_that_divide_them() -> None:
    group = RankGroup("stage0", "mesh", (1, 2), 1, None)
    with pytest.raises(ConfigError, match="4 heads a rank do not make 3 groups; use 1, 2, 4"):
        overlap_exchange(dit(EIGHT_HEADS), group, 3)


def test_fifty_chunks_with_switches_and_a_cut_stay_with_the_local_stream() -> None:
    _, *ranks = run_ranks(steered_on, 3, "front+sp2", timeout_s=90)
    for found in ranks:
        stays_with_local(found)
