"""What one person saw of the server, gathered message by message and summed up at the end.

Lists hold one number a chunk or a control, so a run's length bounds them; errors beyond `MAX_ERRORS` are only counted.
Seconds of a monotonic clock come in as arguments; knows no socket.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from millstream.load.messages import ChunkHeader
from millstream.load.playout import Playout
from millstream.load.summary import Summary, summarise

MAX_ERRORS = 20
FILLING_CHUNKS = 3
"""After a start or a halt the first chunks come as fast as they are made, until the lead is full: no jitter in that."""

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
    """From asking for a session to being told that there is none."""

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
    """played / (played + stalled); None for who never saw a picture."""
    played_s: float
    stalled_s: float
    halted_s: float
    forgiven_s: float
    chunks: int
    misses: int
    blank_chunks: int
    """Came without pictures because this person read too slowly."""
    model_s: float
    """What the server says that these chunks took to make."""
    controls: int
    interrupted: int
    """Controls after which the person paused, left or dozed before they showed: they say nothing of latency."""
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


class Record:
    def __init__(self, person: int, fps: float) -> None:
        self.person = person
        self.samples = Samples()
        self.clock = Playout(fps)
        self.outcome: Outcome = "played"
        self.reason = ""
        self.lead_s: float | None = None
        """As the server says; None: two chunks."""
        self.reconnects = 0
        self._chunks = 0
        self._blank_chunks = 0
        self._full_chunk = 0
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
        self._filling = FILLING_CHUNKS

    @property
    def promise_s(self) -> float:
        """Lead and one chunk; 0 before the first."""
        chunk_s = self._full_chunk / self.clock.fps
        return chunk_s + (2 * chunk_s if self.lead_s is None else self.lead_s)

    def connecting(self, now: float) -> None:
        """The first frame is counted from here."""
        self._connected_at = now

    def refused(self, reason: str, seconds: float) -> None:
        self.outcome, self.reason = "refused", reason
        self.samples.refusal_s.append(seconds)

    def failed(self, reason: str) -> None:
        self.outcome, self.reason = "failed", reason
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
        """The person does something that delays the picture: what was asked for before says nothing of latency."""
        self._interrupted += len(self._waiting)
        self._waiting.clear()
        self._last_arrival, self._filling = None, FILLING_CHUNKS

    def go_away(self, now: float) -> None:
        """Until the next picture after coming back, nothing is held against the server's clock."""
        self.interrupt()
        self.clock.halt(now)
        self._away = True

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
        shown_at = self.clock.arrive(now, header.frames, pictures=pictures)
        self._measure_jitter(header, now)
        for receipt in header.receipts:
            sent_at = self._waiting.pop(receipt.control_id, None)
            if sent_at is not None:
                self.samples.control_arrival_s.append(now - sent_at)
                self.samples.control_shown_s.append(shown_at - sent_at)

    def result(self, now: float) -> PersonResult:
        return PersonResult(
            person=self.person,
            outcome=self.outcome,
            reason=self.reason,
            continuity=self.clock.continuity(now),
            played_s=self.clock.played_s(now),
            stalled_s=self.clock.stalled_s(now),
            halted_s=self.clock.halted_s,
            forgiven_s=self.clock.forgiven_s,
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
        """Whether it follows what came before; what was sent to nobody is a gap that the viewer has to forgive."""
        expected, self._next_media_s = self._next_media_s, header.media_s + header.frames / header.fps
        gap = header.media_s - expected
        if abs(gap) < 0.5 / header.fps:
            return True
        if gap > 0 and self._away:
            self.clock.forgive(gap)
            return True
        self.error(f"chunk {header.index} begins at {header.media_s:.3f} s of media where {expected:.3f} s was due")
        return gap > 0

    def _return(self, now: float) -> None:
        self.clock.proceed(now)
        self._away = False
        if self._came_back_at is not None:
            self.samples.resume_s.append(now - self._came_back_at)
            self._came_back_at = None

    def _count(self, header: ChunkHeader, pictures: bool) -> None:
        self._chunks += 1
        self._blank_chunks += not pictures
        self._full_chunk = max(self._full_chunk, header.frames)
        self._model_s += header.total_ms / 1000

    def _measure_jitter(self, header: ChunkHeader, now: float) -> None:
        if self._last_arrival is not None and self._filling <= 0:
            last, last_media_s = self._last_arrival
            self.samples.jitter_s.append(abs((now - last) - (header.media_s - last_media_s)))
        self._last_arrival = (now, header.media_s)
        self._filling -= 1
