"""Observations of one person, gathered message by message and summed up at the end.

Lists hold one number a chunk or a control, so a run's length bounds them; errors beyond `MAX_ERRORS` are only
counted. Seconds of a monotonic clock come in as arguments; knows no socket.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from millstream.core.server_messages import ChunkHeader
from millstream.load.playout import WatchedPlayout
from millstream.load.summary import Summary, summarise

MAX_ERRORS = 20
BURST = 0.5
"""Chunks that come closer together than this share of what they play are filling the lead, after a start or a
halt."""

Outcome = Literal["played", "refused", "failed"]


@dataclass(slots=True)
class Samples:
    """Seconds, one for each time it happened."""

    first_frame_s: list[float] = field(default_factory=list)
    """From connecting to the first chunk."""
    control_arrival_s: list[float] = field(default_factory=list)
    """From sending a control to having the chunk that first shows it."""
    control_shown_s: list[float] = field(default_factory=list)
    """From sending a control to seeing it."""
    jitter_s: list[float] = field(default_factory=list)
    """How much a chunk's distance from the one before it differs from their distance in media time."""
    resume_s: list[float] = field(default_factory=list)
    """From coming back to the next picture."""
    refusal_s: list[float] = field(default_factory=list)
    """From asking for a session to the refusal."""

    def add(self, other: Samples) -> None:
        for name in self.__slots__:
            getattr(self, name).extend(getattr(other, name))

    def summaries(self) -> dict[str, Summary | None]:
        return {name: summarise(getattr(self, name)) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonResult:
    person: int
    outcome: Outcome
    reason: str
    """Why refused or failed."""
    continuity: float | None
    """played / (played + stalled); None for a person who never saw a picture."""
    played_s: float
    stalled_s: float
    halted_s: float
    forgiven_s: float
    skipped_s: float
    """Seconds left out to be live again after having read too slowly."""
    chunks: int
    misses: int
    blank_chunks: int
    """Chunks that came without frames because this person read too slowly."""
    model_s: float
    """Seconds that these chunks took to make, as reported by the server."""
    controls: int
    interrupted: int
    """Controls after which the person paused, left or dozed before they showed: they say nothing of
    latency."""
    unanswered: int
    """Controls that never showed though the person waited."""
    reconnects: int
    rebukes: int
    """Errors that answered nonsense, as they should."""
    promise_s: float
    """Lead and one chunk: a control is to show within it."""
    num_errors: int
    errors: tuple[str, ...]
    seen: dict[str, Summary | None]


class LoadRecord:
    def __init__(self, person: int) -> None:
        self.person = person
        self.samples = Samples()
        self.clock = WatchedPlayout()
        self.outcome: Outcome = "played"
        self.reason = ""
        self.told_lead_s: float | None = None
        """As the server says; None: two chunks."""
        self.reconnects = 0
        self._chunks = 0
        self._blank_chunks = 0
        self._chunk_s = 0.0
        """Seconds that the longest chunk plays."""
        self._model_s = 0.0
        self._controls = 0
        self._interrupted = 0
        self._waiting: dict[str, float] = {}
        """Controls that have not shown, and when they were sent."""
        self._nonsense = 0
        self._rebukes = 0
        self._errors: list[str] = []
        self._num_errors = 0
        self._next_media_s = 0.0
        self._away = False
        self._came_back_at: float | None = None
        self._connected_at: float | None = None
        self._last_arrival: tuple[float, float] | None = None
        self._filling = True

    @property
    def lead_s(self) -> float:
        """How far the server may be ahead; 0 before the first chunk of a server that does not say."""
        return 2 * self._chunk_s if self.told_lead_s is None else self.told_lead_s

    @property
    def promise_s(self) -> float:
        return self.lead_s + self._chunk_s

    def connecting(self, now: float) -> None:
        """The first frame is counted from here."""
        self._connected_at = now

    def refused(self, reason: str, seconds: float) -> None:
        self.outcome = "refused"
        self.reason = reason
        self.samples.refusal_s.append(seconds)

    def failed(self, reason: str) -> None:
        self.outcome = "failed"
        self.reason = reason
        self.error(reason)

    def steered(self, control_id: str, now: float) -> None:
        self._controls += 1
        self._waiting[control_id] = now

    def babbled(self) -> None:
        self._nonsense += 1

    def rebuked(self, line: str) -> None:
        """An error came: the answer to nonsense, if there was any, or a fault."""
        if self._rebukes < self._nonsense:
            self._rebukes += 1
        else:
            self.error(line)

    def error(self, line: str) -> None:
        self._num_errors += 1
        if len(self._errors) < MAX_ERRORS:
            self._errors.append(line)

    def interrupt(self) -> None:
        """The person does something that delays the picture: what was asked for before says nothing of
        latency."""
        self._interrupted += len(self._waiting)
        self._waiting.clear()
        self._last_arrival = None
        self._filling = True

    def go_away(self, now: float) -> None:
        """Until the next picture after coming back, nothing is held against the server's clock."""
        self.interrupt()
        self.clock.halt(now)
        self._away = True
        self._came_back_at = None

    def come_back(self, now: float) -> None:
        self._came_back_at = now

    def chunk(self, header: ChunkHeader, now: float) -> None:
        if not self._continues(header):
            return
        pictures = bool(header.sizes)
        if self._away and pictures:
            self._return(now)
        if self._connected_at is not None:
            self.samples.first_frame_s.append(now - self._connected_at)
            self._connected_at = None
        self._count(header, pictures)
        if self._away:
            return
        shown_at = self.clock.arrive(now, header.frames, header.fps, pictures=pictures)
        if (
            self.clock.ahead_s(now) > self.promise_s
        ):  # read late, not sent early: a live viewer jumps to what is now
            shown_at = max(now, shown_at - self.clock.skip(now, to_ahead_s=self.lead_s))
        self._measure_jitter(header, now)
        for receipt in header.receipts:
            sent_at = self._waiting.pop(receipt.control_id, None)
            if sent_at is not None:
                self.samples.control_arrival_s.append(now - sent_at)
                self.samples.control_shown_s.append(shown_at - sent_at)

    def result(self, now: float) -> PersonResult:
        settled = self._controls - self._interrupted - len(self._waiting)
        assert settled >= 0, (
            f"{self._controls} controls were sent, {self._interrupted} interrupted, {len(self._waiting)} wait"
        )
        assert self._rebukes <= self._nonsense, f"{self._rebukes} rebukes for {self._nonsense} times nonsense"
        return PersonResult(
            person=self.person,
            outcome=self.outcome,
            reason=self.reason,
            continuity=self.clock.continuity(now),
            played_s=self.clock.played_s(now),
            stalled_s=self.clock.stalled_s(now),
            halted_s=self.clock.halted_s,
            forgiven_s=self.clock.forgiven_s,
            skipped_s=self.clock.skipped_s,
            chunks=self._chunks,
            misses=self.clock.misses,
            blank_chunks=self._blank_chunks,
            model_s=self._model_s,
            controls=self._controls,
            interrupted=self._interrupted,
            unanswered=len(self._waiting),
            reconnects=self.reconnects,
            rebukes=self._rebukes,
            promise_s=self.promise_s,
            num_errors=self._num_errors,
            errors=tuple(self._errors),
            seen=self.samples.summaries(),
        )

    def _continues(self, header: ChunkHeader) -> bool:
        """Return whether the chunk is new. After an absence the last chunk may come again, and chunks sent
        meanwhile may be lost."""
        due = self._next_media_s
        rounding = 0.5 / header.fps
        gap = header.media_s - due
        if abs(gap) > rounding and not self._away:
            self.error(
                f"chunk {header.index} begins at {header.media_s:.3f} s of media where {due:.3f} s was due"
            )
        if gap < -rounding:
            return False
        if gap > rounding and self._away:
            self.clock.forgive(gap)
        self._next_media_s = header.media_s + header.frames / header.fps
        return True

    def _return(self, now: float) -> None:
        self.clock.proceed(now)
        self._away = False
        if self._came_back_at is not None:
            self.samples.resume_s.append(now - self._came_back_at)
            self._came_back_at = None

    def _count(self, header: ChunkHeader, pictures: bool) -> None:
        self._chunks += 1
        self._blank_chunks += not pictures
        self._chunk_s = max(self._chunk_s, header.frames / header.fps)
        self._model_s += header.total_ms / 1000

    def _measure_jitter(self, header: ChunkHeader, now: float) -> None:
        """From the second chunk on that comes at its pace: there is none in a lead that fills."""
        last = self._last_arrival
        self._last_arrival = (now, header.media_s)
        if last is None:
            return
        passed = now - last[0]
        media_s = header.media_s - last[1]
        if not self._filling:
            self.samples.jitter_s.append(abs(passed - media_s))
        self._filling = self._filling and passed < BURST * media_s
