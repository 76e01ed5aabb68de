"""What is looked after once a second: what viewers are told of how their session does, and which ones nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millstream.core.server_messages import Stats
from millstream.server.sessions.live_session import LiveSession
from millstream.serving.service_metrics import ServiceMetrics


def report(live_sessions: Mapping[str, LiveSession], metrics: ServiceMetrics) -> None:
    """How each session does, to those who watch it."""
    for each in metrics.scheduler.sessions:
        live_session = live_sessions.get(each.session_id)
        if live_session is None:
            continue
        stats = Stats(
            continuity=each.continuity,
            ahead_s=each.ahead_s,
            stalled_s=each.stalled_s,
            misses=each.misses,
            viewers=len(live_session.viewers),
            utilisation=metrics.scheduler.utilisation,
            shared=metrics.shared.get(each.session_id, 0),
            paused=each.session_id in metrics.paused,
        )
        live_session.shared = stats.shared
        for viewer in live_session.viewers:
            viewer.outbox.put_newest(stats)


def end_abandoned(
    live_sessions: Mapping[str, LiveSession],
    now: float,
    *,
    abandon_s: float,
    leave_line_s: float,
    end: Callable[[str, str], None],
    let_be: Callable[[LiveSession], None],
) -> None:
    """Those that nobody watches: in line that is borne with less long than with a place. What was kept of one that has not come
    to its place stays."""
    for live_session in list(live_sessions.values()):
        patience_s = leave_line_s if live_session.never_began else abandon_s
        tape = live_session.tape
        of_use_at = live_session.left_at if tape is None else max(live_session.left_at, tape.recording.fed_at)
        if live_session.viewers or live_session.held or now - of_use_at <= patience_s:
            continue
        comes_back = live_session.request.start is not None
        if live_session.last_info is None and (live_session.never_began or comes_back):
            let_be(live_session)
        end(live_session.session_id, f"nobody watched it for {patience_s:g} s")
