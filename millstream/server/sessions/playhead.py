"""Where a viewer is in a stream whose frames are pushed to it one by one. Pure arithmetic: seconds of some clock come in.

Frames are shown at the pace of media time. When they come late, everything after them moves; when some were left out, the
next one takes their place, so that what waits never grows old.
"""

from __future__ import annotations

LATE_S = 0.1
"""A frame that is less late than this is shown at once, and the next one in time again."""


class Playhead:
    def __init__(self) -> None:
        self._zero: float | None = None
        """When media time 0 would have been shown; None before the first frame."""
        self._begun = 0.0
        self._next_media_s = 0.0

    def show_at(self, media_s: float, frame_s: float, now: float) -> float:
        """When to show a frame that lies at `media_s` and lasts `frame_s`."""
        assert frame_s > 0, f"a frame that lasts {frame_s} s"
        if self._zero is None:
            self._zero, self._begun = now - media_s, now
        elif media_s - self._next_media_s > frame_s:
            self._zero -= media_s - self._next_media_s
        self._next_media_s = media_s + frame_s
        due = self._zero + media_s
        if now - due > LATE_S:
            self._zero += now - due
        return max(due, now)

    def elapsed_s(self, shown_at: float) -> float:
        """Since the first frame."""
        return shown_at - self._begun
