"""What is looked after once a second: what viewers are told of how their session does, and which ones nobody watches."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.core.messages import Stats
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
        )
        live_session.shared = stats.shared
        for viewer in live_session.viewers:
            viewer.outbox.put_newest(stats)


def abandoned(
    live_sessions: Mapping[str, LiveSession], now: float, *, abandon_s: float, leave_line_s: float
) -> list[tuple[LiveSession, float]]:
    """Those that nobody watches, and for how long that was borne with: in line less long than with a place."""
    found = list[tuple[LiveSession, float]]()
    for live_session in live_sessions.values():
        patience_s = leave_line_s if live_session.never_began else abandon_s
        tape = live_session.tape
        of_use_at = live_session.left_at if tape is None else max(live_session.left_at, tape.recording.fed_at)
        if not live_session.viewers and not live_session.held and now - of_use_at > patience_s:
            found.append((live_session, patience_s))
    return found
