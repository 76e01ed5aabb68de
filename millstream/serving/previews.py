"""Small pictures of what a stream could become, for a person to choose from: one step of the model, one
latent frame decoded.

Each is made on a hidden branch that is dropped at once, so the stream goes on to the bits it would have had.
No stream waits for one: like a guess (`serving/look_ahead.py`) it begins only if nothing is due before it has
surely ended, in memory that no session was promised. What is not made within `PATIENCE_S` is not made, and
the answer says why. Bounded: `MAX_FUTURES` of one ask, one ask of a session, `MAX_ASKS` in all.

    ask ─► next ─► hidden branch ─► one step ─► last latent frame ─► picture
     └──► answered without, when its time is over

The engine's thread; `ask`, `next` and `prune` under the lock of `serving/service.py`.
Shapes: H height, W width, 3 is RGB.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from millstream.core.controls import SetPrompt
from millstream.core.errors import ControlError, MeshGivenUp, MillstreamError, Overloaded, UnknownSession
from millstream.engine.engine import Engine
from millstream.engine.future_picture import future_picture
from millstream.serving.chunk_times import ChunkTimes, Geometry
from millstream.serving.look_ahead import Guess, LookAhead, most_s, shape_of
from millstream.serving.session_entry import SessionEntry
from millstream.serving.session_table import SessionTable

log = logging.getLogger(__name__)

MAX_FUTURES = 4
MAX_ASKS = 8
PATIENCE_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Previewed:
    pictures: tuple[NDArray[np.uint8] | None, ...]
    """[H, W, 3] for each that was asked for; None where it was not made."""
    note: str
    """Why some were not; empty where all were."""


@dataclass(slots=True)
class _Asked:
    entry: SessionEntry
    controls: Sequence[SetPrompt]
    until: float
    future: Future[Previewed] = field(default_factory=Future)
    pictures: list[NDArray[np.uint8] | None] = field(default_factory=list)

    def answer(self, note: str = "") -> None:
        """Answer with the pictures there are."""
        missing = len(self.controls) - len(self.pictures)
        note = f"{missing} of {len(self.controls)} pictures could not be made: {note}" if missing else ""
        self.future.set_result(Previewed(pictures=(*self.pictures, *[None] * missing), note=note))


class PreviewMaker:
    def __init__(self, engine: Engine, table: SessionTable, ahead: LookAhead) -> None:
        self._engine = engine
        self._table = table
        self._ahead = ahead
        self._asked: dict[str, _Asked] = {}
        """By session."""
        self._times = ChunkTimes()
        """Times of previews alone: no promise is based on them."""

    @property
    def until(self) -> float:
        """Time when the first of them must be answered."""
        return min((asked.until for asked in self._asked.values()), default=math.inf)

    def ask(self, entry: SessionEntry, controls: Sequence[SetPrompt], now: float) -> Future[Previewed]:
        if not 1 <= len(controls) <= MAX_FUTURES:
            raise ControlError(f"1 to {MAX_FUTURES} futures can be previewed at a time, got {len(controls)}")
        for control in controls:
            control.check()
        if entry.session is None:
            raise ControlError("the session is not live yet; ask for previews when it is")
        if entry.request.feed is not None:
            raise ControlError("a session with an input video has no previews: its input is not there yet")
        if self._engine.speed.paired_commits:
            raise ControlError(
                "with paired_commits a preview would change the stream's bits: serve without it for previews"
            )
        if entry.session_id in self._asked:
            raise Overloaded("previews of this session are being made; ask again when they are there")
        if len(self._asked) >= MAX_ASKS:
            raise Overloaded(f"{MAX_ASKS} others wait for previews; try again later")
        asked = self._asked[entry.session_id] = _Asked(entry, tuple(controls), now + PATIENCE_S)
        asked.future.set_running_or_notify_cancel()  # it is answered, even if the caller has given up waiting
        return asked.future

    def next(self, now: float, until: float | None) -> Callable[[], None] | None:
        """Return a job that makes a picture while nothing is due before `until`, None for never; None if
        there is none, or no room for it."""
        for asked in self._asked.values():
            entry = asked.entry
            if not self._is_ready(entry):
                continue
            if entry.asked.memory_bytes + self._ahead.held_bytes > self._table.admission.free_bytes:
                asked.until = now
                continue
            control = asked.controls[len(asked.pictures)]
            assert entry.session is not None, f"{entry.label} was never let in"
            steps = entry.session.timeline.steps[:1]
            shape = shape_of(self._engine.spec, entry, Guess(0, (control,)), steps=steps)
            if until is None or now + most_s(shape, self._times, self._table.admission.times) <= until:
                return partial(self._make, asked, shape)
        return None

    def prune(self, now: float) -> None:
        """Answer requests whose time is over, and those whose session has ended."""
        for name, asked in list(self._asked.items()):
            if not self._table.holds(asked.entry):
                del self._asked[name]
                asked.future.set_exception(UnknownSession("the session has ended; start a new one"))
            elif now >= asked.until:
                del self._asked[name]
                asked.answer(self._why_not(asked.entry))

    def close(self) -> None:
        while self._asked:
            self._asked.popitem()[1].future.set_exception(
                Overloaded("the server is shutting down; try another one")
            )

    def _is_ready(self, entry: SessionEntry) -> bool:
        session = entry.session
        return (
            session is not None
            and entry.closing is None
            and not session.again
            and self._table.scheduler.is_at_rest(entry.session_id)
        )

    def _why_not(self, entry: SessionEntry) -> str:
        if entry.asked.memory_bytes + self._ahead.held_bytes > self._table.admission.free_bytes:
            return "sessions have been promised the memory that a hidden branch needs"
        return (
            f"the device was not idle for long enough within {PATIENCE_S:g} s; pause the stream, or "
            "lower "
            "its frame rate"
        )

    def _make(self, asked: _Asked, shape: Geometry) -> None:
        """Without the lock."""
        begun = time.monotonic()
        session = asked.entry.session
        assert session is not None, f"{asked.entry.label} was never let in"
        name = asked.entry.session_id
        try:
            asked.pictures.append(future_picture(self._engine, session, asked.controls[len(asked.pictures)]))
        except MeshGivenUp:
            raise
        except (
            Exception
        ) as error:  # no session's chunk: the session goes on, and meets it again if this is asked for
            log.info("no preview was made: %s", error, extra={"session": asked.entry.label})
            del self._asked[name]
            asked.answer(
                str(error) if isinstance(error, MillstreamError) else f"it failed ({type(error).__name__})"
            )
            return
        self._times.add(shape, time.monotonic() - begun)
        if len(asked.pictures) == len(asked.controls):
            del self._asked[name]
            asked.answer()
