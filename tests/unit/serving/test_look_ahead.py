"""Chunks made ahead on hidden branches: the same bits without a model call, nobody harmed, nothing left
behind.

The service's thread is not started: each test takes the turns itself, so nothing depends on how fast this
machine is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from millstream.core.controls import AnyControl, Cut, Pause, SetPrompt, SetSteps, WeightedPrompt
from millstream.core.errors import PoolFull, PromptError
from millstream.engine.engine import Engine
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.look_ahead import MAX_HELD, Guess, most_s, shape_of
from millstream.serving.notices import Ended, Notice
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest
from millstream.serving.turns import Run
from millstream.session.chunk import Chunk
from millstream.wire.parcel import Parcel

pytestmark = pytest.mark.slow  # a second each: real chunks of several sessions

BYTES = 1000
STORM = SetPrompt(prompt="storm")
PLACES = 20
SMALL: dict[str, Any] = dict(height=16, width=32, window=6, sink=0, fps=4.0)


class Driven:
    """A service whose turns the test takes, with one session after another."""

    def __init__(self, engine: Engine, *, places: int = PLACES, look_ahead: bool = True) -> None:
        admission = AdmissionConfig(memory_bytes=places * BYTES, max_waiting=4, share=1.0)
        self.engine = engine
        self.service = Service(
            engine, admission=admission, session_bytes=lambda config: BYTES, look_ahead=look_ahead
        )
        self.notices: dict[str, list[Notice]] = {}

    def open(self, name: str = "a", chunks: int = 3, **changes: object) -> None:
        """A session with its first chunks, as far ahead of its viewer as it may be, or nearly."""
        told = self.notices[name] = []
        config = self.engine.stream_config(**(SMALL | changes))
        request = OpenRequest(session_id=name, prompts=(WeightedPrompt("sea"),), config=config, lead_s=60.0)
        self.service.open(request, told.append)
        self.service.watch(name)
        while len(self.chunks(name)) < chunks:
            self.take_turn(name)

    def take_turn(self, name: str) -> None:
        """The next chunk of a session, whenever it would be due."""
        self.service.ahead.prune()
        entry = self.service.table.scheduler._entries[name]
        entry.turn = Run(session_ids=(name,), batch_key=entry.batch_key)
        self.service._turns.run(entry.turn)
        self.service._turns.show()
        self.service._turns.finish_closing()

    def idle(self, seconds: float = math.inf) -> bool:
        """Whether something was made while nothing was due for so long."""
        now = time.monotonic()
        guess = self.service.ahead.next_guess(now, now + seconds)
        if guess is not None:
            guess()
        return guess is not None

    def chunks(self, name: str = "a") -> list[Chunk]:
        return [notice for notice in self.notices[name] if isinstance(notice, Chunk)]

    def digests(self, name: str = "a") -> list[str]:
        return [chunk.digest for chunk in self.chunks(name)]

    @property
    def counts(self) -> tuple[int, int]:
        """Made and taken."""
        metrics = self.service.metrics().look_ahead
        return metrics.made, metrics.taken


@contextmanager
def driven(engine: Engine, **options: object) -> Iterator[Driven]:
    driven = Driven(engine, **options)  # type: ignore[arg-type]
    try:
        yield driven
    finally:
        for name in list(driven.service.table.entries):
            driven.service.end(name)
        driven.service._turns.finish_closing()
        driven.service.ahead.prune()
        assert engine.generator.caches == {}, "a branch was left behind"


def alone(engine: Engine, controls: dict[int, AnyControl], chunks: int) -> list[Chunk]:
    with engine.session("sea", **SMALL) as session:
        for index, control in controls.items():
            session.control(control, at_chunk=index)
        return list(session.stream(chunks=chunks))


@pytest.fixture
def posted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sessions whose chunks the model is asked for."""
    names = list[str]()
    post = engine.transport.post

    def noting(parcels: Sequence[Parcel]) -> object:
        names.extend(parcel.envelope.session_id for parcel in parcels)
        return post(parcels)

    monkeypatch.setattr(engine.transport, "post", noting)
    return names


@pytest.mark.parametrize(
    "control",
    [STORM, *(SetPrompt(prompt="storm", mode=mode, chunks=2) for mode in ("keep", "blend", "cut"))],
    ids=lambda control: control.mode,
)
def test_a_right_draft_gives_the_bits_it_would_have_had_without_a_model_call(
    engine: Engine, posted: list[str], control: SetPrompt
) -> None:
    expected = alone(engine, {3: control}, 6)
    with driven(engine) as play:
        play.open()
        play.service.draft("a", control)
        assert play.idle()
        assert play.service.control("a", control).chunk_index == 3
        del posted[:]
        play.take_turn("a")
        assert posted == [], "the chunk was there already"
        for _ in range(2):
            play.take_turn("a")
        assert play.digests() == [chunk.digest for chunk in expected]
        assert all(
            (mine.frames == other.frames).all() for mine, other in zip(play.chunks(), expected, strict=True)
        )
        assert [receipt.state for receipt in play.chunks()[3].receipts] == ["applied"]
        assert play.counts == (1, 1)


@pytest.mark.parametrize(
    "told", [SetPrompt(prompt="calm"), Cut(), SetPrompt(prompt="storm", mode="keep"), None]
)
def test_a_wrong_draft_changes_nothing(engine: Engine, told: AnyControl | None) -> None:
    expected = alone(engine, {} if told is None else {3: told}, 6)
    with driven(engine) as play:
        play.open()
        play.service.draft("a", STORM)
        assert play.idle()
        if told is not None:
            play.service.control("a", told)
        for _ in range(3):
            play.take_turn("a")
        assert play.digests() == [chunk.digest for chunk in expected]
        assert play.counts == (1, 0)


def test_what_waits_for_the_next_chunk_is_made_ahead_and_the_rest_of_a_timeline_is_not(
    engine: Engine,
) -> None:
    controls: dict[int, AnyControl] = {3: STORM, 5: SetSteps(steps=(1000.0, 500.0))}
    expected = alone(engine, controls, 6)
    with driven(engine) as play:
        play.open()
        for index, control in controls.items():
            play.service.control("a", control, at_chunk=index)
        made = []
        for _ in range(3):
            made.append(play.idle())
            assert not play.idle(), "once is enough"
            play.take_turn("a")
        assert made == [True, False, True]
        assert play.digests() == [chunk.digest for chunk in expected]
        assert play.counts == (2, 2)


def test_a_draft_that_is_sent_is_not_made_twice_and_is_no_draft_any_more(engine: Engine) -> None:
    with driven(engine) as play:
        play.open()
        play.service.draft("a", STORM)
        assert play.idle()
        play.service.control("a", SetPrompt(prompt="storm", id="mine"))
        assert not play.idle(), "what waits is what is held"
        play.take_turn("a")
        assert not play.idle()
        assert play.counts == (1, 1)


def test_a_draft_that_changes_replaces_what_was_made_and_one_that_goes_leaves_nothing_to_make(
    engine: Engine,
) -> None:
    with driven(engine) as play:
        play.open()
        for prompt in ("s", "st", "storm"):
            play.service.draft("a", SetPrompt(prompt=prompt))
            assert play.idle()
            assert len(engine.generator.caches.keys() - {"a"} - set(_copies(play))) == 1
        play.service.control("a", STORM)
        play.take_turn("a")
        assert play.counts == (3, 1)
        play.service.draft("a", SetPrompt(prompt="calm"))
        play.service.draft("a", None)
        assert not play.idle()


def _copies(play: Driven) -> tuple[str, ...]:
    return play.service.session("a").trail.cache_ids


def test_nothing_is_made_where_it_might_not_have_ended_before_something_is_due(engine: Engine) -> None:
    with driven(engine) as play:
        play.open()
        play.open("b")
        play.service.draft("a", STORM)
        ahead = play.service.ahead
        entry = play.service.table.entries["a"]
        times = play.service.table.admission.times
        shape = shape_of(engine.spec, entry, Guess(3, (STORM,)))
        counted_s = most_s(shape, ahead._times, times)
        slowest = times.estimate(entry.asked.geometry)
        assert slowest is not None
        assert counted_s > slowest.slowest_s, "its window is rebuilt"
        assert not play.idle(0.9 * counted_s)
        assert play.idle(1.1 * counted_s)
        ahead._times.add(shape, 10 * counted_s)
        ahead._times.add(shape, 10 * counted_s)
        play.service.draft("b", STORM)
        assert not play.idle(1.1 * counted_s), "the last ones took longer than was counted on"
        assert play.idle(11 * counted_s)


def test_the_thread_sleeps_until_the_first_of_all_sessions_is_due(engine: Engine) -> None:
    """What `next_guess` is told is the scheduler's: one that may run comes before any guess."""
    with driven(engine) as play:
        play.open()
        play.service.draft("a", STORM)
        asked: list[float | None] = []
        play.service.ahead.next_guess = lambda now, until: asked.append(until) or (lambda: None)  # type: ignore[assignment,func-returns-value]
        play.open("b", chunks=0)
        assert isinstance(play.service._next(), Run), "b has nothing to show yet"
        assert asked == []


def test_a_session_that_stands_still_ends_or_goes_back_keeps_nothing_made_ahead(engine: Engine) -> None:
    leave: list[Callable[[Service], object]] = [lambda it: it.unwatch("a"), lambda it: it.end("a")]
    for go in leave:
        with driven(engine) as play:
            play.open()
            play.service.draft("a", STORM)
            assert play.idle()
            go(play.service)
            play.service._turns.finish_closing()
            play.service.ahead.prune()
            assert set(engine.generator.caches) <= {"a"}
            assert not play.idle()


def test_branches_are_bounded_and_give_way_to_sessions(engine: Engine) -> None:
    with driven(engine, places=MAX_HELD + 3) as play:
        for number in range(MAX_HELD + 1):
            play.open(f"s{number}", chunks=2)
            play.service.draft(f"s{number}", STORM)
        made = 0
        while play.idle():
            made += 1
        assert made == 2, "two places are left"
        play.open("late", chunks=0)
        play.service.ahead.prune()
        assert len(play.service.ahead._held) == 1
    with driven(engine) as play:
        for number in range(MAX_HELD + 1):
            play.open(f"s{number}", chunks=2)
            play.service.draft(f"s{number}", STORM)
        while play.idle():
            pass
        assert len(play.service.ahead._held) == MAX_HELD


def test_a_guess_that_fails_is_not_tried_again_and_ends_nobody(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone(engine, {3: STORM}, 4)
    with driven(engine) as play:
        play.open()
        play.service.draft("a", STORM)
        with monkeypatch.context() as patch:
            patch.setattr(engine.generator.pages, "promise", _no_room)
            assert play.idle()
            assert not play.idle()
        play.service.control("a", STORM)
        play.take_turn("a")
        assert play.digests() == [chunk.digest for chunk in expected]
        assert play.counts == (0, 0)
        assert not any(isinstance(notice, Ended) for notice in play.notices["a"])


def _no_room(num_bytes: int, device: object) -> None:
    if num_bytes > 0:
        raise PoolFull("no room")


def test_a_pause_that_waits_is_no_chunk_to_make(engine: Engine) -> None:
    with driven(engine) as play:
        play.open()
        play.service.control("a", Pause())
        assert play.idle()
        assert play.counts == (0, 0)


def test_what_was_made_ahead_is_paid_for_and_teaches_like_any_chunk(engine: Engine) -> None:
    with driven(engine) as play:
        play.open()
        play.service.draft("a", STORM)
        assert play.idle()
        busy_s = play.service.metrics().scheduler.busy_s
        play.service.control("a", STORM)
        play.take_turn("a")
        taken = play.chunks()[3].timing
        assert play.service.metrics().scheduler.busy_s - busy_s >= 0.9 * taken.total_ms / 1e3 > 0
        assert {"steps", "decode"} & taken.phases_ms.keys()
        assert sum(taken.phases_ms.values()) <= taken.total_ms


def test_a_draft_that_nobody_could_send_is_refused_and_without_looking_ahead_none_is_made(
    engine: Engine,
) -> None:
    with driven(engine, look_ahead=False) as play:
        play.open()
        with pytest.raises(PromptError):
            play.service.draft("a", SetPrompt(prompt="x", prompts=(WeightedPrompt("y"),)))
        play.service.draft("a", STORM)
        assert not play.idle()


def test_a_guess_that_cuts_is_priced_by_a_first_chunks_own_steps(engine: Engine) -> None:
    with driven(engine) as play:
        play.open()
        play.service.control("a", SetSteps(steps=(1000.0,), first_steps=(1000.0, 700.0, 400.0)))
        play.take_turn("a")
        entry = play.service.table.entries["a"]
        cuts = (Cut(), SetPrompt(prompt="storm", mode="cut"))
        for guess in (Guess(4, (control,)) for control in cuts):
            assert shape_of(engine.spec, entry, guess).calls == 4
        assert shape_of(engine.spec, entry, Guess(4, (SetPrompt(prompt="storm", mode="keep"),))).calls == 2
