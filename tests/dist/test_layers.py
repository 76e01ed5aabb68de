"""A pipeline of layers over real processes: the same flows, several sessions in turn, blocks that move between chunks."""

from __future__ import annotations

import torch

from millstream.core.topology import FRONT, Topology
from millstream.parallel.apply import parallelise
from millstream.parallel.groups import create_groups
from tests.dist.calls import FOUR_HEADS, STREAMS, flows, whole_flows
from tests.dist.ranks import run_ranks
from tests.dist.streams import SMALL, engine, newest, spread_engine, steered_locally, steered_on
from tests.unit.models_for_tests import dit, relative_error

PROMPTS = ("sea", "hills", "a city at night")


def calls_of_a_share(rank: int, name: str) -> tuple | None:
    topology = Topology.parse(name)
    groups = create_groups(topology, rank, timeout_s=30)
    if rank == FRONT:
        return None
    share = parallelise(dit(FOUR_HEADS), topology, groups)
    return [flows(share, **stream) for stream in STREAMS], share.cached_layers, share.cached_heads


def test_each_stage_has_its_layers_and_all_get_the_flows_of_the_whole_model() -> None:
    expected = whole_flows()
    _, *ranks = run_ranks(calls_of_a_share, 4, "front+pp3")
    for found, layers, heads in ranks:
        assert [relative_error(*pair) < 1e-5 for pair in zip(found, expected, strict=True)] == [True, True]
        assert (layers, heads) == (1, 4)


def test_fifty_chunks_over_stages_of_two_stay_with_the_local_stream() -> None:
    _, *ranks = run_ranks(steered_on, 5, "front+pp2xtp2", timeout_s=90)
    for found in ranks:
        assert relative_error(found[:1], steered_locally()[:1]) < 1e-5
        assert relative_error(found, steered_locally()) < 1e-3


def three_sessions(here: object, chunks: int) -> torch.Tensor:
    """Sessions of different sizes advance together; the newest latents of the first two after every chunk."""
    sessions = [here.session(prompt, seed=seed, **SMALL) for seed, prompt in enumerate(PROMPTS)]
    sessions[2] = here.session(PROMPTS[2], seed=9, height=48, width=48, steps=(1000, 700, 300), window=6)
    found = []
    for _ in range(chunks):
        parcels = [session.prepare(session.decide()) for session in sessions]
        deliveries, _ = here.submit_together(parcels)
        for session, delivery in zip(sessions, deliveries, strict=True):
            session.accept(delivery)
        found.append(torch.cat([newest(session).flatten() for session in sessions]))
    return torch.stack(found)


def three_alone(chunks: int) -> torch.Tensor:
    here = engine()
    sessions = [here.session(prompt, seed=seed, **SMALL) for seed, prompt in enumerate(PROMPTS[:2])]
    sessions.append(here.session(PROMPTS[2], seed=9, height=48, width=48, steps=(1000, 700, 300), window=6))
    found = [[newest(session).flatten() for _ in session.stream(chunks)] for session in sessions]
    return torch.stack([torch.cat(each) for each in zip(*found, strict=True)])


def sessions_in_turn(rank: int, name: str) -> tuple | None:
    topology = Topology.parse(name)
    if rank == FRONT:
        create_groups(topology, rank, timeout_s=30)
        return None
    here, groups = spread_engine(topology, rank)
    share, halves = here.generator.dit, []
    begin, finish = share.begin, share.finish
    share.begin = lambda call: (halves.append("begin"), begin(call))[1]
    share.finish = lambda begun: (halves.append("finish"), finish(begun))[1]
    found = three_sessions(here, 3)
    return found, halves, [str(called) for called in groups.record.last if not called.done and called.kind == "receive"]


def test_sessions_of_any_kind_take_turns_in_a_pipeline_and_none_changes() -> None:
    _, *ranks = run_ranks(sessions_in_turn, 3, "front+pp2")
    expected = three_alone(3)
    for found, halves, waiting in ranks:
        assert relative_error(found, expected) < 1e-5
        assert halves[:6] == ["begin", "begin", "begin", "finish", "begin", "finish"], "three calls are under way at a time"
        assert waiting == []
