"""Every kind of abuse there is, by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks.abuses import by_frames, by_http, by_sessions, by_webrtc
from benchmarks.abuses.scene import Scene

Abuse = Callable[[Scene], Awaitable[None]]

ABUSES: dict[str, Abuse] = {
    abuse.__name__: abuse
    for abuse in (
        by_http.slow_headers, by_http.slow_bodies, by_http.pipelined_requests, by_http.wrong_keys, by_http.uploads_cut_off,
        by_http.growing_journals, by_http.tampered_snapshots,
        by_frames.empty_continuations, by_frames.unread_pings, by_frames.ping_floods, by_frames.oversize_frames,
        by_frames.slow_readers, by_frames.picture_bombs, by_frames.connects_and_disconnects,
        by_sessions.sessions_abandoned, by_sessions.lines_left, by_sessions.huge_and_slow, by_sessions.save_floods,
        by_sessions.recording_floods, by_sessions.control_floods, by_sessions.dear_changes, by_sessions.view_links,
        by_sessions.rest_sessions,
        by_webrtc.sdp_bombs, by_webrtc.offers_unmet,
    )
}  # fmt: skip
