"""Every kind of abuse there is, by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.soak.abuses import by_connections, by_frames, by_http, by_reading, by_sessions, by_webrtc
from tests.soak.abuses.scene import Scene

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
        by_reading.costly_forms, by_reading.costly_bodies, by_reading.costly_packs, by_reading.costly_texts,
        by_connections.idle_connections, by_connections.connections_made_and_dropped, by_connections.garbage_for_requests,
    )
}  # fmt: skip
