"""Previews: pictures of other futures that leave the stream's bits alone, made in idle time, or refused with
the reason."""

from __future__ import annotations

import time

import numpy as np
import pytest

from millstream.core.controls import AnyControl, Pause, SetPrompt, SetSteps, Switch
from millstream.core.errors import (
    ControlError,
    MillstreamError,
    Overloaded,
    PoolFull,
    PromptError,
    UnknownSession,
)
from millstream.engine.engine import Engine
from millstream.serving.notices import Ended
from millstream.serving.previews import MAX_ASKS, MAX_FUTURES, PATIENCE_S, Previewed
from tests.unit.serving.test_look_ahead import STORM, Driven, alone, driven

pytestmark = pytest.mark.slow

CALM = SetPrompt(prompt="calm")


def make(play: Driven, seconds: float | None = None) -> int:
    """How many were made while nothing was due for so long, or for ever."""
    made = 0
    while (work := play.service.previews.next(time.monotonic(), _from_now(seconds))) is not None:
        work()
        made += 1
    return made


def _from_now(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def time_passes(play: Driven, seconds: float = PATIENCE_S) -> None:
    play.service.previews.prune(time.monotonic() + seconds)


@pytest.mark.parametrize("mode", ["recompute", "cut"])
def test_previews_are_pictures_of_each_future_and_change_no_bit_of_the_stream(
    engine: Engine, mode: Switch
) -> None:
    later: dict[int, AnyControl] = {
        4: SetPrompt(prompt="storm", mode=mode),
        5: SetSteps(steps=(1000.0, 500.0)),
    }
    expected = alone(engine, later, 7)
    with driven(engine) as play:
        play.open()
        for index, control in later.items():
            play.service.control("a", control, at_chunk=index)
        while len(play.chunks()) < 7:
            futures = (SetPrompt(prompt="storm", mode=mode), SetPrompt(prompt="calm", mode=mode))
            asked = play.service.preview("a", futures)
            assert make(play) == 2
            first, second = asked.result(0).pictures
            assert first is not None
            assert second is not None
            assert (first.shape, first.dtype) == ((16, 32, 3), np.uint8)
            assert (first != second).any(), "two prompts, two futures"
            assert asked.result(0).note == ""
            play.take_turn("a")
        assert play.digests() == [chunk.digest for chunk in expected]
        assert all(
            (mine.frames == other.frames).all() for mine, other in zip(play.chunks(), expected, strict=True)
        )


def test_a_preview_is_one_model_call_and_those_that_rebuild_the_window(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    forward = engine.model.dit.forward
    monkeypatch.setattr(
        engine.model.dit, "forward", lambda *args, **kw: calls.append(0) or forward(*args, **kw)
    )  # type: ignore[func-returns-value]
    with driven(engine) as play:
        play.open()
        play.service.control("a", SetSteps(steps=(1000.0, 500.0), first_steps=(1000.0, 700.0, 400.0)))
        play.take_turn("a")
        play.service.preview("a", [SetPrompt(prompt="storm", mode="cut")])
        del calls[:]
        assert make(play) == 1
        assert len(calls) == 1


def test_nothing_is_made_that_might_not_have_ended_before_something_is_due_and_people_are_told(
    engine: Engine,
) -> None:
    with driven(engine) as play:
        play.open()
        asked = play.service.preview("a", [STORM, CALM])
        assert make(play, 0.0) == 0
        assert make(play, 1e-5) == 0
        work = play.service.previews.next(time.monotonic(), time.monotonic() + 60)
        assert work is not None
        work()
        assert not asked.done()
        time_passes(play)
        answer = asked.result(0)
        assert [picture is not None for picture in answer.pictures] == [True, False]
        assert answer.note.startswith(
            "1 of 2 pictures could not be made: the device was not idle for long enough within 5 s"
        )


def test_without_memory_that_nobody_was_promised_there_is_none(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with driven(engine, places=1) as play:
        play.open()
        asked = play.service.preview("a", [STORM])
        assert make(play) == 0
        time_passes(play, 0.0)
        assert "promised the memory" in asked.result(0).note
    with driven(engine) as play:
        play.open()
        asked = play.service.preview("a", [STORM])
        monkeypatch.setattr(engine.generator.pages, "promise", _no_room)
        make(play)
        assert asked.result(0) == Previewed(
            pictures=(None,), note="1 of 1 pictures could not be made: no room"
        )
        assert not any(isinstance(notice, Ended) for notice in play.notices["a"])


def _no_room(num_bytes: int, device: object) -> None:
    if num_bytes > 0:
        raise PoolFull("no room")


def test_a_paused_session_shows_its_futures_and_stays_paused(engine: Engine) -> None:
    with driven(engine) as play:
        play.open()
        play.service.control("a", Pause())
        play.take_turn("a")
        asked = play.service.preview("a", [STORM])
        assert make(play) == 1
        assert asked.result(0).note == ""
        assert play.service.metrics().paused == {"a"}


def test_asks_are_bounded_checked_and_end_with_their_session(engine: Engine) -> None:
    def refused(error: type[MillstreamError], words: str, name: str, *controls: SetPrompt) -> None:
        with pytest.raises(error, match=words):
            play.service.preview(name, controls)

    with driven(engine) as play:
        for number in range(MAX_ASKS + 1):
            play.open(f"s{number}", chunks=2 - bool(number), fps=0.5)
        refused(ControlError, "1 to 4 futures", "s0")
        refused(ControlError, "1 to 4 futures", "s0", *[STORM] * (MAX_FUTURES + 1))
        refused(PromptError, "is empty", "s0", SetPrompt(prompt=" "))
        refused(UnknownSession, "no session", "nobody", STORM)
        asked = [play.service.preview(f"s{number}", [STORM]) for number in range(MAX_ASKS)]
        refused(Overloaded, "being made", "s0", STORM)
        refused(Overloaded, "others wait", f"s{MAX_ASKS}", STORM)
        play.service.end("s0")
        play.service._turns.finish_closing()
        time_passes(play, 0.0)
        assert isinstance(asked[0].exception(0), UnknownSession)
        play.service.previews.close()
        assert isinstance(asked[1].exception(0), Overloaded)


def test_the_thread_makes_them_when_nothing_is_due_and_answers_when_the_time_is_over(engine: Engine) -> None:
    with driven(engine) as play:
        play.open()
        play.service.control("a", Pause())
        play.take_turn("a")
        asked = play.service.preview("a", [STORM])
        work = play.service._next()
        assert callable(work)
        work()
        assert asked.result(0).note == ""
