"""Media time of one session: how fast its viewer plays, how far ahead of the viewer it is, when the viewer
runs dry.

Pure arithmetic: seconds of some clock come in as arguments. It knows no other session and nothing of the
device; `serving/scheduler.py` orders sessions by what is said here.

Time runs left to right. A chunk may start at `may_start_at`, at most the lead before the viewer would have
played it, and must have landed at `dry_at`:

    landed            may_start_at                       dry_at
    ├── buffered media ──┼──────────── window_s ────────────┤ stall until the next chunk lands
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from millstream.core.errors import ConfigError

RateKind = Literal["auto", "asked", "strict"]
"""Kind of frame rate: the server chooses it, a client asked for one and takes less, or would rather be
refused."""
ROUNDING_S = 1e-9
"""Lateness below this is floating point, not a stall."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Promise to a viewer: frames a second, in chunks of so many, and how soon a control shows."""

    fps: float
    chunk_frames: int
    """Pixel frames of a full chunk; an epoch's first may have fewer, or more where it begins from a picture."""
    lead_s: float | None = None
    """How far generation may be ahead of the viewer. None: two chunks, so that each has the time it plays to
    be made in."""
    slack_s: float = 0.0
    """Beyond that, for chunks that take longer than most."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise ConfigError(f"fps must be above 0, got {self.fps}")
        if self.chunk_frames < 1:
            raise ConfigError(f"a chunk needs at least 1 frame, got {self.chunk_frames}")
        if not (math.isfinite(self.max_ahead_s) and self.window_s > 0):
            raise ConfigError(
                f"a lead of {self.max_ahead_s:g} s leaves no time to make a chunk that plays "
                f"{self.media_s:g} s; "
                f"use {2 * self.media_s:g} s or more"
            )

    def at(self, fps: float, *, slack_s: float = 0.0) -> Pace:
        """Return this pace at another frame rate: as many chunks ahead."""
        lead_s = None if self.lead_s is None else self.lead_s * self.fps / fps
        return Pace(fps=fps, chunk_frames=self.chunk_frames, lead_s=lead_s, slack_s=slack_s)

    @property
    def media_s(self) -> float:
        """How long a full chunk plays."""
        return self.chunk_frames / self.fps

    @property
    def max_ahead_s(self) -> float:
        return self.slack_s + (2 * self.media_s if self.lead_s is None else self.lead_s)

    @property
    def window_s(self) -> float:
        """From the moment a chunk may start to the moment it must have landed."""
        return self.max_ahead_s - self.media_s


@dataclass(slots=True)
class Playout:
    """A viewer's clock. It starts with the first chunk, waits when it runs dry and stands still while
    halted."""

    pace: Pace
    landed_at: float
    """When the last chunk landed; before the first, when the session joined."""
    media_s: float = 0.0
    """All media that has landed."""
    stalled_s: float = 0.0
    """Stalls that are over."""
    misses: int = 0
    """Chunks that landed late."""
    begun: bool = False
    halted_at: float | None = None
    dry_at: float = 0.0
    """When the viewer has played all there is. For the first chunk: one chunk's time after joining."""
    slowed_dry_at: float = 0.0
    """Time when the viewer has played all there is, if it plays as slowly as the device can serve."""

    def __post_init__(self) -> None:
        self.dry_at = self.slowed_dry_at = self.landed_at + self.pace.media_s

    def resume(self, dry_at: float) -> None:
        """Before the first chunk: its viewer has pictures from elsewhere until then, if any. Not more than
        the lead counts."""
        assert not self.begun, "a clock that runs knows what its viewer has"
        left_s = min(dry_at - self.landed_at, self.pace.max_ahead_s)
        if left_s > 0:
            self.begun = True
            self.media_s = left_s
            self.dry_at = self.slowed_dry_at = self.landed_at + left_s

    def land(self, now: float, frames: int, *, rate: float = 1.0, fps: float | None = None) -> None:
        """A chunk is out, while the device can serve this session at `rate` of real time; `fps` is its own,
        if it has one.

        A late one shifts the clock: the viewer waited and misses nothing of the picture.
        """
        assert 0 < rate <= 1, f"rate must be above 0 and at most 1, got {rate}"
        assert frames > 0, f"a chunk has 1 frame or more, got {frames}"
        time = self._viewer_time(now)
        gained = frames / (fps or self.pace.fps)
        late = time - self.dry_at
        if not self.begun:
            self.begun = True
            self.dry_at = time
        elif late > ROUNDING_S:
            self.misses += 1
            self.stalled_s += late
            self.dry_at = time
        self.dry_at += gained
        self.media_s += gained
        self.landed_at = time
        self._land_slowed(time, gained, rate)

    def halt(self, now: float) -> None:
        assert self.halted_at is None, f"halted already at {self.halted_at}"
        self.halted_at = now

    def proceed(self, now: float) -> None:
        """Go on as if no time had passed since the halt."""
        assert self.halted_at is not None, "only a halted clock can go on"
        assert now >= self.halted_at, f"time went from {self.halted_at} back to {now}"
        passed = now - self.halted_at
        self.halted_at = None
        self.dry_at += passed
        self.slowed_dry_at += passed
        self.landed_at += passed

    @property
    def may_start_at(self) -> float:
        """The earliest start that cannot end more than the lead ahead, however quick the chunk."""
        return self.dry_at - self.pace.window_s if self.begun else self.landed_at

    def deadline(self, rate: float) -> float:
        """When the next chunk is due while the device can serve this session at `rate` of real time."""
        assert 0 < rate <= 1, f"rate must be above 0 and at most 1, got {rate}"
        return self.dry_at if rate == 1 else self.slowed_dry_at

    def ahead_s(self, now: float) -> float:
        return max(0.0, self.dry_at - self._viewer_time(now)) if self.begun else 0.0

    def waited_s(self, now: float) -> float:
        """All stalls, the one that is going on among them."""
        return self.stalled_s + (max(0.0, self._viewer_time(now) - self.dry_at) if self.begun else 0.0)

    def played_s(self, now: float) -> float:
        return self.media_s - self.ahead_s(now)

    def continuity(self, now: float) -> float:
        """Share of the time since the first picture in which the picture moved."""
        played = self.played_s(now)
        waited = self.waited_s(now)
        return played / (played + waited) if waited else 1.0

    def _land_slowed(self, time: float, gained: float, rate: float) -> None:
        """A chunk that came early keeps its credit, so that shares come out exact; the lead bounds it."""
        if rate == 1:
            self.slowed_dry_at = self.dry_at
        else:
            furthest = time + self.pace.max_ahead_s / rate
            self.slowed_dry_at = min(furthest, max(time, self.slowed_dry_at) + gained / rate)

    def _viewer_time(self, now: float) -> float:
        return now if self.halted_at is None else self.halted_at
