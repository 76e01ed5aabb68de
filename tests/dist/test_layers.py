"""A pipeline of layers over real processes: the same flows, several sessions in turn, blocks that move
between chunks."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from millstream.core.presets import MODELS
from millstream.core.speed import FP8_GROUPS, Speed
from millstream.core.topology import FRONT, Topology
from millstream.experiments.rebalance import rebalance
from millstream.models.sampler import Call
from millstream.parallel.collectives import PendingCollective
from millstream.parallel.groups import create_groups
from tests.dist.calls import FOUR_HEADS, STREAMS, flows, whole_flows
from tests.dist.ranks import run_ranks
from tests.dist.spread import parallelise
from tests.dist.streams import SMALL, engine, newest, spread_engine, stays_with_local, steered_on
from tests.unit.models_for_tests import dit, relative_error
from tests.unit.rounds import make_together

PROMPTS = ("sea", "hills", "a city at night")


FIVE_LAYERS = replace(MODELS["wan-tiny"].dit, layers=5)


def calls_of_a_share(rank: int, name: str) -> tuple | None:
    topology = Topology.parse(name)
    groups = create_groups(topology, rank, timeout_s=60)
    if rank == FRONT:
        return None
    share = parallelise(dit(FOUR_HEADS), topology, groups)
    found = [flows(share, **stream) for stream in STREAMS]
    share.drain()
    return found, share.cached_layers, share.cached_heads


def test_each_stage_has_its_layers_and_all_get_the_flows_of_the_whole_model() -> None:
    expected = whole_flows()
    _, *ranks = run_ranks(calls_of_a_share, 4, "front+pp3")
    for found, layers, heads in ranks:
        assert [relative_error(*pair) < 1e-5 for pair in zip(found, expected, strict=True)] == [True, True]
        assert (layers, heads) == (1, 4)


def test_fifty_chunks_over_stages_of_two_with_carried_commits_stay_with_the_local_stream() -> None:
    _, *ranks = run_ranks(steered_on, 5, "front+pp2xtp2", "paired", timeout_s=90)
    for found in ranks:
        stays_with_local(found)


def three_sessions(here: object, chunks: int) -> torch.Tensor:
    """Sessions of different sizes advance together; the newest latents of the first two after every chunk."""
    sessions = [here.session(prompt, seed=seed, **SMALL) for seed, prompt in enumerate(PROMPTS)]
    sessions[2] = here.session(PROMPTS[2], seed=9, height=48, width=48, steps=(1000, 700, 300), window=6)
    found = []
    for _ in range(chunks):
        make_together(here, sessions, alike=False)
        found.append(torch.cat([newest(session).flatten() for session in sessions]))
    return torch.stack(found)


def three_alone(chunks: int) -> torch.Tensor:
    here = engine()
    sessions = [here.session(prompt, seed=seed, **SMALL) for seed, prompt in enumerate(PROMPTS[:2])]
    sessions.append(here.session(PROMPTS[2], seed=9, height=48, width=48, steps=(1000, 700, 300), window=6))
    found = [[newest(session).flatten() for _ in session.stream(chunks)] for session in sessions]
    return torch.stack([torch.cat(each) for each in zip(*found, strict=True)])


class Noted:
    """A call under way that notes when it is waited for."""

    def __init__(self, pending: PendingCollective, notes: list[str]) -> None:
        self._pending = pending
        self._notes = notes

    def wait(self) -> torch.Tensor:
        self._notes.append("wait")
        return self._pending.wait()


def sessions_in_turn(rank: int, name: str) -> tuple | None:
    topology = Topology.parse(name)
    if rank == FRONT:
        create_groups(topology, rank, timeout_s=60)
        return None
    here, groups = spread_engine(topology, rank)
    share = here.generator.dit
    halves = []
    begin = share.begin

    def noted_begin(call: Call) -> Noted | None:
        halves.append("begin")
        pending = begin(call)
        return pending and Noted(pending, halves)

    share.begin = noted_begin
    found = three_sessions(here, 3)
    return (
        found,
        halves,
        [str(called) for called in groups.record.last if not called.done and called.kind == "receive"],
    )


def test_sessions_of_any_kind_take_turns_in_a_pipeline_and_none_changes() -> None:
    _, *ranks = run_ranks(sessions_in_turn, 3, "front+pp2")
    expected = three_alone(3)
    for found, halves, waiting in ranks:
        assert relative_error(found, expected) < 1e-5
        assert halves[:6] == ["begin", "begin", "begin", "wait", "begin", "wait"], (
            "three calls are under way at a time"
        )
        assert waiting == []


SLOW_S = 0.04


def pipeline_with_slow_blocks(rank: int, name: str) -> tuple | None:
    """Seconds that three chunks take for one session alone and for two in turn, on blocks that only take
    time."""
    topology = Topology.parse(name)
    if rank == FRONT:
        create_groups(topology, rank, timeout_s=60)
        return None
    here, _ = spread_engine(topology, rank)
    for block in here.generator.dit.dit.blocks:
        block.register_forward_hook(lambda *_: time.sleep(SLOW_S))
    taken = []
    for count in (1, 2):
        sessions = [here.session(prompt, **SMALL) for prompt in PROMPTS[:count]]
        begun = time.perf_counter()
        for _ in range(3):
            make_together(here, sessions)
        taken.append(time.perf_counter() - begun)
    return tuple(taken)


def test_a_second_session_fills_the_pipeline() -> None:
    _, (alone, together), _ = run_ranks(pipeline_with_slow_blocks, 3, "front+pp2")
    assert together < 1.6 * alone, (
        f"two sessions took {together:.2f} s, one {alone:.2f} s; one after the other would be twice"
    )


def stream_while_blocks_move(rank: int, name: str) -> tuple | None:
    """Two sessions over stages that seem to drift apart, one way and the other."""
    topology = Topology.parse(name)
    if rank == FRONT:
        create_groups(topology, rank, timeout_s=60)
        return None
    here, _ = spread_engine(topology, rank, dit(FIVE_LAYERS))
    share = here.generator.dit
    stage = topology.place_of(rank)[0]
    sessions = [
        here.session(prompt, seed=seed, **SMALL, sink=1, positions="windowed")
        for seed, prompt in enumerate(PROMPTS[:2])
    ]
    found = []
    splits = []
    branches = []
    for slow in (None, 0, None, 1, 1, 0):
        if slow is not None:
            share.busy.lap = lambda slow=slow: share.cached_layers * (3.0 if stage == slow else 1.0)
            splits.append((rebalance(here.generator), share.bounds, share.cached_layers))
        for session in sessions:
            next(session.stream(1))
            found.append(newest(session))
        if not branches:  # they share a window when blocks move for the first time
            branches = [sessions[0].fork(), sessions[0].fork()]
            next(branches[0].stream(1))
    next(branches[1].stream(1))
    return torch.cat(found), splits, torch.stack([newest(branch) for branch in branches])


def test_blocks_and_caches_change_stages_between_chunks_and_the_stream_does_not_notice() -> None:
    here = engine()
    here.generator.dit = dit(FIVE_LAYERS)
    sessions = [
        here.session(prompt, seed=seed, **SMALL, sink=1, positions="windowed")
        for seed, prompt in enumerate(PROMPTS[:2])
    ]
    expected = torch.cat(
        [newest(session) for _ in range(6) for session in sessions if next(session.stream(1))]
    )
    _, *ranks = run_ranks(stream_while_blocks_move, 5, "front+pp2xtp2")
    for rank, (found, splits, branches) in enumerate(ranks):
        assert relative_error(found, expected) < 1e-5
        assert all(relative_error(branch, expected.view(12, *branch.shape)[2]) < 1e-5 for branch in branches)
        assert [bounds for _, bounds, _ in splits] == [(0, 1, 5), (0, 4, 5), (0, 4, 5), (0, 1, 5)]
        assert [moved for moved, *_ in splits] == [True, True, False, True]
        stage = rank // 2
        assert [layers for *_, layers in splits] == [
            bounds[stage + 1] - bounds[stage] for _, bounds, _ in splits
        ]


SPEEDS = {"fast": Speed(blocks=True), "low": Speed(blocks=True, fp8=FP8_GROUPS, low_attention=True)}


def fast_streams(rank: int, name: str) -> dict[str, tuple[torch.Tensor, torch.Tensor, list[int]]] | None:
    """Two chunks before blocks move and three after, beside the same stream on blocks that stay."""
    topology = Topology.parse(name)
    groups = create_groups(topology, rank, timeout_s=60)
    if rank == FRONT:
        return None
    found = {}
    for kind, speed in SPEEDS.items():
        made = []
        layers = []
        for bounds in ((0, 1, 5), None):
            here, _ = spread_engine(topology, rank, dit(FIVE_LAYERS), groups=groups, speed=speed)
            session = here.session("sea", seed=5, **SMALL)
            share = here.generator.dit
            latents = [newest(session) for _ in session.stream(2)]
            if bounds is not None:
                share.busy.lap = lambda share=share: share.cached_layers * (3.0 if share.is_first else 1.0)
                assert rebalance(here.generator)
                assert share.bounds == bounds
                layers = [share.cached_layers, len(share.dit.blocks.modulations_N16D)]
            made.append(torch.cat([*latents, *(newest(session) for _ in session.stream(3))]))
            share.drain()
        found[kind] = (*made, layers)
    return found


@pytest.mark.slow
def test_fast_blocks_change_stages_and_compute_the_same_bits_there() -> None:
    _, *ranks = run_ranks(fast_streams, 5, "front+pp2xtp2", timeout_s=120)
    for rank, found in enumerate(ranks):
        for kind, (moved, stayed, layers) in found.items():
            assert torch.equal(moved, stayed), f"{kind} on rank {rank}"
            assert layers == [(1, 4)[rank // 2]] * 2
        assert not torch.equal(found["fast"][0], found["low"][0]), "they are different products"
