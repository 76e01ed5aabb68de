"""Branches of one session on one generator: each gives the bits that it gives alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import msgspec
import pytest
import torch

from millstream.core.controls import SetKVBias, SetPrompt
from millstream.core.errors import MillstreamError, UnknownSession
from millstream.engine.engine import Engine
from millstream.generation.generator import Commits, Generator
from millstream.generation.stopwatch import Stopwatch
from millstream.generation.stream_batch import StreamBatch
from millstream.models.kv import held_bytes
from millstream.session.session import Session
from millstream.wire.parcel import Parcel, digest
from tests.unit.models_for_tests import relative_error, tiny_engine
from tests.unit.one_chunk import accept, plan_chunk

SMALL = dict(height=16, width=32, window=6)
STREAMS = {"plain": {}, "sink": dict(sink=2), "windowed": dict(sink=2, positions="windowed")}
CHUNKS = 6
PAST = 3


@cache
def engine() -> Engine:
    return tiny_engine()


def generator(commits: Commits = "later") -> Generator:
    return Generator(engine().model.dit, Stopwatch(torch.device("cpu")), commits=commits)


@cache
def parcels(stream: str, prompt: str = "hills") -> list[Parcel]:
    """Parcels of a session that changes its prompt and its bias after `PAST` chunks; before that, all are
    the same."""
    session = engine().session("sea", seed=4, **SMALL, **STREAMS[stream])
    made = []
    session.control(SetPrompt(prompt=prompt, mode="keep"), at_chunk=PAST)
    session.control(SetPrompt(prompt="rain", mode="recompute"), at_chunk=PAST + 1)
    session.control(SetKVBias(kv_bias=0.5), at_chunk=PAST + 2)
    for _ in range(CHUNKS):
        made.append(_planned(session))
    return made


def _planned(session: Session) -> Parcel:
    parcel = plan_chunk(session)
    assert parcel is not None
    accept(session, engine().generator.run(parcel))
    return parcel


def run(maker: Generator, name: str, wanted: Sequence[Parcel]) -> list[str]:
    """The digests of these chunks as those of a session called `name`."""
    return [answer(maker, [named(parcel, name)])[0] for parcel in wanted]


def named(parcel: Parcel, name: str) -> Parcel:
    return replace(parcel, envelope=msgspec.structs.replace(parcel.envelope, session_id=name))


def answer(maker: Generator, wanted: Sequence[Parcel]) -> list[str]:
    deliveries = maker.run_together(wanted)
    assert all(delivery.result.ok for delivery in deliveries), [
        delivery.result.error for delivery in deliveries
    ]
    return [digest(delivery.latents_out) for delivery in deliveries]


@pytest.mark.slow
@pytest.mark.parametrize("commits", ["at once", "later", "paired"])
@pytest.mark.parametrize("stream", STREAMS)
def test_branches_in_turns_give_what_each_gives_alone(stream: str, commits: Commits) -> None:
    futures = {"left": parcels(stream), "right": parcels(stream, prompt="a city at night")}
    alone = {}
    for name, future in futures.items():
        maker = generator(commits)
        run(maker, name, future[:PAST])
        maker.run_commit(name)  # as a fork does
        alone[name] = run(maker, name, future[PAST:])
    maker = generator(commits)
    found = {"left": [], "right": [], "twin": []}
    run(maker, "left", futures["left"][:PAST])
    maker.fork("left", "right")
    maker.fork("right", "twin")
    for chunk in range(PAST, CHUNKS):
        for name in found:
            found[name] += run(maker, name, [futures.get(name, futures["left"])[chunk]])
    assert {name: found[name] for name in futures} == alone
    assert found["twin"] == alone["left"], "a branch that does what its parent did"
    assert alone["left"] != alone["right"]
    assert len({id(cache.ring.window) for cache in maker.caches.values()}) == 1


def test_a_fork_copies_nothing_and_what_is_held_is_counted_once() -> None:
    maker = generator()
    run(maker, "one", parcels("plain")[:PAST])
    before = maker.held_bytes()
    for number in range(16):
        maker.fork("one", f"branch {number}")
    assert (maker.held_bytes(), maker.pages.copies) == (before, 0)
    for number in range(16):
        maker.release(f"branch {number}")
    run(maker, "one", parcels("plain")[PAST:])
    assert (maker.pages.pages_in_use, maker.pages.promised_bytes, maker.pages.copies) == (0, 0, 0)


def test_a_branch_outlives_its_parent_and_a_new_epoch_of_it() -> None:
    maker = generator()
    future = parcels("plain")
    whole = run(maker, "alone", future)
    run(maker, "one", future[:PAST])
    for name in ("second", "third"):
        maker.fork("one", name)
    run(maker, "one", future[:PAST])  # its cache is made anew
    assert run(maker, "second", future[PAST:]) == whole[PAST:]
    maker.release("one")
    maker.release("second")
    assert run(maker, "third", future[PAST:]) == whole[PAST:]
    assert maker.pages.pages_in_use == 0


@pytest.mark.slow
def test_branches_that_share_calls_get_a_window_each() -> None:
    maker = generator()
    future = parcels("windowed")
    run(maker, "one", future[:PAST])
    maker.fork("one", "two")
    maker.fork("one", "three")
    shared = maker.run_together([named(future[PAST], name) for name in ("one", "two")])
    alone = maker.run(named(future[PAST], "three"))
    for delivery in shared:
        assert relative_error(delivery.latents_out, alone.latents_out) < 1e-3
    rings = [maker.caches[name].ring for name in ("one", "two", "three")]
    assert rings[0].window is rings[2].window is not rings[1].window
    sinks = {id(ring.sink.k): ring.sink.k.nbytes for ring in rings}
    assert held_bytes(rings) == 2 * rings[1].window.num_bytes + maker.pages.bytes_in_use + sum(sinks.values())


@pytest.mark.slow
def test_a_branch_at_staggered_noise_levels_gets_a_window_of_its_own() -> None:
    maker = generator("at once")
    future = parcels("plain")
    expected = run(maker, "alone", future)[PAST:]
    run(maker, "one", future[:PAST])
    maker.fork("one", "two")
    batch = StreamBatch(maker, depth=1)
    found = [
        digest(delivery.latents_out)
        for parcel in future[PAST:]
        for delivery in batch.push(named(parcel, "two"))
    ]
    assert found == expected
    assert maker.caches["one"].ring.window is not maker.caches["two"].ring.window
    assert run(maker, "one", future[PAST:]) == expected


def test_what_cannot_be_forked_says_why() -> None:
    maker = generator()
    with pytest.raises(UnknownSession, match="nobody holds no window here"):
        maker.fork("nobody", "new")
    run(maker, "one", parcels("plain")[:1])
    maker.num_staggered = 1
    with pytest.raises(MillstreamError, match="staggered noise levels"):
        maker.fork("one", "new")
    assert list(maker.caches) == ["one"]


def test_a_branch_without_room_is_refused_and_the_others_go_on() -> None:
    maker = generator()
    future = parcels("plain")
    whole = run(maker, "alone", future)
    run(maker, "one", future[:PAST])
    maker.fork("one", "two")
    maker.fork("one", "three")
    maker.pages.capacity_bytes = maker.pages.promised_bytes
    refused = maker.run(named(future[PAST], "two")).result
    assert not refused.ok
    assert "end a branch" in refused.error
    assert run(maker, "one", future[PAST:]) == whole[PAST:]
    maker.release("three")
    assert run(maker, "two", future[PAST:]) == whole[PAST:]


@pytest.mark.parametrize("stream", STREAMS)
def test_a_branch_that_was_moved_away_and_back_gives_the_same_bits(stream: str) -> None:
    maker = generator()  # another device, to whoever compares
    future = parcels(stream)
    elsewhere = torch.device("cpu", 0)
    whole = run(maker, "alone", future)
    run(maker, "one", future[:PAST])
    maker.fork("one", "two")
    run(maker, "two", future[PAST : PAST + 1])
    maker.move("one", elsewhere)
    assert run(maker, "two", future[PAST + 1 :]) == whole[PAST + 1 :]
    assert maker.pages.pages_in_use == 0, "it took its frames along"
    maker.move("one", elsewhere)
    assert run(maker, "one", future[PAST:]) == whole[PAST:]
    assert maker.caches["one"].ring.window is not maker.caches["two"].ring.window


@torch.inference_mode()
def test_a_saved_branch_holds_its_own_frames() -> None:
    maker = generator()
    future = parcels("plain")
    run(maker, "one", future[:PAST])
    maker.fork("one", "two")
    before = {name: tensor.clone() for name, tensor in maker.caches["two"].ring.state().items()}
    run(maker, "one", future[PAST:])
    after = maker.caches["two"].ring.state()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
