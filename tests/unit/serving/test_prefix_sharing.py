"""Sessions that begin alike: one makes the chunks, both have them, on the same pages, to the bits each would
have alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.core.controls import AnyControl, Cut, SetPrompt, SetSteps, SetWindow
from millstream.core.rewind import RewindConfig
from millstream.engine.engine import Engine
from millstream.serving.session_entry import geometry
from tests.unit.serving.test_look_ahead import SMALL, Driven, driven, posted

pytestmark = pytest.mark.slow

__all__ = ["posted"]

CHUNKS = 6
NAMES = ("a", "b", "c")
CONTROLS: dict[str, AnyControl] = {
    "storm": SetPrompt(prompt="storm"),
    "cut": Cut(),
    "one step": SetSteps(steps=(1000.0,)),
    "window": SetWindow(window=9),
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(
        "wan-tiny", weights="random", device="cpu", dtype="float32", rewind=RewindConfig(states=4, every=2)
    )


@pytest.fixture(scope="module")
def play(engine: Engine) -> Iterator[Driven]:
    with driven(engine) as play:
        yield play


class Straight:
    """What a session gives that is alone, by the controls it gets at each chunk. Each is worked out once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known = dict[tuple[str, ...], str]()

    def digest(self, path: tuple[str, ...]) -> str:
        """Of its last chunk."""
        if path not in self._known:
            with self._engine.session("sea", **SMALL) as session:
                for index, name in enumerate(path):
                    if name:
                        session.control(CONTROLS[name], at_chunk=index)
                for length, chunk in enumerate(session.stream(len(path)), 1):
                    self._known[path[:length]] = chunk.digest
        return self._known[path]


@pytest.fixture(scope="module")
def straight(engine: Engine) -> Straight:
    return Straight(engine)


MOVES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["", "", "", *CONTROLS, "end"])),
    min_size=6,
    max_size=10,
)


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES)
def test_whatever_happens_to_them_each_has_its_own_bits_and_no_page_is_left(
    play: Driven, straight: Straight, moves: list[tuple[str, str]]
) -> None:
    paths = dict[str, tuple[str, ...]]()
    for name, move in moves:
        if move == "end":
            _end(play, name)
            paths.pop(name, None)
        elif len(paths.get(name, ())) < CHUNKS:
            if name not in paths:
                play.open(name, chunks=0)
            if move:
                play.service.control(name, CONTROLS[move])
            play.take_turn(name)
            paths[name] = (*paths.get(name, ()), move)
            assert play.digests(name)[-1] == straight.digest(paths[name]), f"{name} after {paths[name]}"
    for name in NAMES:
        _end(play, name)
    pool = play.engine.generator.pages
    assert (pool.pages_in_use, pool.bytes_in_use, pool.promised_bytes) == (0, 0, 0)
    assert play.engine.generator.caches == {}


def _end(play: Driven, name: str) -> None:
    play.service.end(name)
    play.service._turns.finish_closing()


def shared(play: Driven, name: str) -> int:
    return play.service.metrics().shared[name]


def test_the_second_asks_the_model_for_nothing_and_holds_the_pages_of_the_first(
    engine: Engine, posted: list[str]
) -> None:
    with driven(engine) as play:
        play.open("a", chunks=2)
        play.open("b", chunks=0)
        for _ in range(3):
            play.take_turn("a")
        one = engine.generator.held_bytes()
        names = len(posted)
        window = engine.generator.caches["a"].ring.window
        for _ in range(4):
            play.take_turn("b")
        assert shared(play, "a") == 0
        assert shared(play, "b") == 2, (
            "chunks 1 and 3, after which a has kept its state; it had gone on from the others"
        )
        assert posted[names:] == ["b", "b"]
        assert engine.generator.caches["b"].ring.window is window
        play.take_turn("b")
        assert shared(play, "b") == 3, "a stands right behind this one"
        assert engine.generator.held_bytes() <= 1.6 * one
        assert play.digests("a") == play.digests("b")
        assert all(
            (mine.frames == other.frames).all() for mine, other in zip(*map(play.chunks, "ab"), strict=True)
        )


def test_in_step_they_make_each_chunk_once_until_they_part_and_those_who_differ_share_nothing(
    engine: Engine, posted: list[str]
) -> None:
    others: list[dict[str, Any]] = [dict(seed=1), dict(window=9), dict(height=48), dict(steps=(1000.0,))]
    with driven(engine) as play:
        play.service.table.admission.times.add(geometry(engine.spec, engine.stream_config(**SMALL)), 1e-3)
        for name in "ab":
            play.open(name, chunks=0)
        for number, changes in enumerate(others):
            play.open(f"o{number}", chunks=0, **changes)
        for _ in range(3):
            for name in list(play.notices):
                play.take_turn(name)
        assert (posted.count("a"), posted.count("b")) == (3, 0)
        assert [shared(play, f"o{number}") for number in range(len(others))] == [0] * len(others)
        play.service.control("b", SetPrompt(prompt="storm"))
        for name in "abab":
            play.take_turn(name)
        assert (posted.count("a"), posted.count("b")) == (5, 2)


def test_nothing_is_shared_with_another_owner(engine: Engine) -> None:
    with driven(engine) as play:
        play.open("a", chunks=2)
        play.open("b", chunks=0)
        entry = play.service.table.entries["b"]
        entry.request = replace(entry.request, owner="somebody")
        play.take_turn("b")
        play.take_turn("b")
        assert shared(play, "b") == 0


def test_what_was_not_made_teaches_nothing_of_what_chunks_take(engine: Engine) -> None:
    with driven(engine) as play:
        play.open("a", chunks=2)
        times = play.service.table.admission.times
        shape = play.service.table.entries["a"].asked.geometry
        play.open("b", chunks=0)
        play.take_turn("a")
        known = list(times._measured[shape])
        for _ in range(3):
            play.take_turn("b")
        assert shared(play, "b") == 2
        assert list(times._measured[shape]) == known, "what b has made itself is its first"
