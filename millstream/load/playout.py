"""A viewer's picture as time passes: it plays at its frame rate from the first frame and stands still when it
runs dry.

Pure arithmetic; seconds of some clock come in as arguments. This is the harness's own model and shares
nothing with the server's, so that one can be held against the other. Since the first frame every second is
one of four kinds:

    played     the picture moved
    stalled    it should have moved and did not: the next chunk had not come, or came without frames
    forgiven   it did not move, through the viewer's own doing: what was sent while it was away is lost
    halted     the viewer had paused, was away or did not look
"""

from __future__ import annotations

from dataclasses import dataclass

ROUNDING_S = 1e-9
"""Lateness below this is floating point, not a stall."""


@dataclass(slots=True)
class WatchedPlayout:
    media_s: float = 0.0
    """All media that has come, with frames or without."""
    blank_s: float = 0.0
    """Media that came without frames."""
    late_s: float = 0.0
    """Stalls that are over."""
    misses: int = 0
    """Chunks that came late or without frames."""
    skipped_s: float = 0.0
    """Media that came too late to be of interest."""
    forgiven_s: float = 0.0
    halted_s: float = 0.0
    """Halts that are over."""
    _forgivable_s: float = 0.0
    _dry_at: float | None = None
    """When all that has come is played; None before the first frame."""
    _halted_at: float | None = None

    def arrive(self, now: float, frames: int, fps: float, *, pictures: bool = True) -> float:
        """Add a chunk that has come, and return when its first frame is shown."""
        assert frames > 0, f"a chunk has 1 frame or more, got {frames}"
        time = self._viewer_time(now)
        gained = frames / fps
        if self._dry_at is None:
            self._dry_at = time
        late = time - self._dry_at
        if late > ROUNDING_S:
            self._catch_up(late)
        if not pictures:
            self.misses += 1
            self.blank_s += gained
        shown_at = max(time, self._dry_at)
        self._dry_at = shown_at + gained
        self.media_s += gained
        return shown_at

    def forgive(self, seconds: float) -> None:
        """Forgive so many seconds of the stalls to come: they are not the server's doing."""
        assert seconds >= 0, f"cannot forgive {seconds} s"
        self._forgivable_s += seconds

    def skip(self, now: float, *, to_ahead_s: float) -> float:
        """Jump forward until no more than `to_ahead_s` waits to be played, as a viewer that has fallen behind
        does, and return the seconds skipped.

        Media without frames counts as stalled even where it is jumped over: it was not there when it was
        due.
        """
        skipped = max(0.0, self.ahead_s(now) - to_ahead_s)
        if self._dry_at is not None:
            self._dry_at -= skipped
        self.skipped_s += skipped
        return skipped

    def halt(self, now: float) -> None:
        """Stand still. While halted: nothing."""
        if self._halted_at is None:
            self._halted_at = now

    def proceed(self, now: float) -> None:
        """Go on as if no time had passed since the halt. While not halted: nothing."""
        if self._halted_at is None:
            return
        passed = now - self._halted_at
        self._halted_at = None
        assert passed >= 0, f"time went back by {-passed} s"
        if self._dry_at is not None:
            self._dry_at += passed
            self.halted_s += passed

    @property
    def halted(self) -> bool:
        return self._halted_at is not None

    def ahead_s(self, now: float) -> float:
        """Media that has come and is not played yet."""
        return 0.0 if self._dry_at is None else max(0.0, self._dry_at - self._viewer_time(now))

    def played_s(self, now: float) -> float:
        return max(0.0, self.media_s - self.blank_s - self.skipped_s - self.ahead_s(now))

    def stalled_s(self, now: float) -> float:
        """All stalls, the one that is going on among them."""
        return self.late_s + self.blank_s + max(0.0, self._dry_s(now) - self._forgivable_s)

    def continuity(self, now: float) -> float | None:
        """Share of played in played and stalled; None before the first frame."""
        played = self.played_s(now)
        stalled = self.stalled_s(now)
        return None if self._dry_at is None else played / (played + stalled) if stalled else 1.0

    def _catch_up(self, late: float) -> None:
        forgiven = min(late, self._forgivable_s)
        self._forgivable_s -= forgiven
        self.forgiven_s += forgiven
        if late - forgiven > ROUNDING_S:
            self.misses += 1
            self.late_s += late - forgiven

    def _dry_s(self, now: float) -> float:
        return 0.0 if self._dry_at is None else max(0.0, self._viewer_time(now) - self._dry_at)

    def _viewer_time(self, now: float) -> float:
        return now if self._halted_at is None else self._halted_at
