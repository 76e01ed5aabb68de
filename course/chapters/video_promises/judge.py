"""Video chapter 5, what is asked of an answer. Viewers on paper judge it."""

from __future__ import annotations

from types import ModuleType

from course.chapters.video_promises.paper_device import Watched, played


def judge_load_is_work_over_time(answer: ModuleType) -> None:
    """Each session's share of the device, added up."""
    for sessions, expected in (
        ([(0.2, 0.75)], 0.2 / 0.75),
        ([(0.5, 3.0), (0.12, 0.75), (0.12, 0.75)], 0.5 / 3 + 0.32),
        ([], 0.0),
    ):
        found = answer.load_of(sessions)
        assert abs(found - expected) < 1e-9, f"{sessions}: {found}, not {expected}"


def judge_at_the_fitting_rate_the_load_is_one(answer: ModuleType) -> None:
    """All of the device: sessions * chunk_s = frames / rate. Solve for the rate."""
    for chunk_s, frames, sessions in ((0.2, 12, 3), (0.05, 9, 10), (1.0, 12, 1)):
        rate = answer.fitting_rate(chunk_s, frames, sessions)
        load = sessions * chunk_s / (frames / rate)
        assert abs(load - 1) < 1e-9, f"{sessions} sessions at {rate} pictures a second are a load of {load}"


def judge_nobody_stalls_where_everybody_fits(answer: ModuleType) -> None:
    """Leave out sessions that would get too far ahead; of the rest take the smallest dry_at."""
    sessions = {
        "long": Watched(fps=4, chunk_s=0.5),
        **{f"quick {n}": Watched(fps=16, chunk_s=0.12) for n in range(3)},
    }
    viewers = played(_ReadersRule(answer, sessions), sessions, 60.0)
    for name, viewer in viewers.items():
        assert viewer.stalled_s < 0.5, f"{name} stalled for {viewer.stalled_s:.2f} s of a minute"


def judge_nobody_gets_more_than_two_chunks_ahead(answer: ModuleType) -> None:
    """Do not run a session with more than one chunk unplayed."""
    assert answer.next_session({"a": 10.0}, {"a": 1.0}, 8.5) is None, (
        "a is one and a half chunks ahead already"
    )
    assert answer.next_session({"a": 10.0}, {"a": 1.0}, 9.0) == "a", (
        "a has one chunk left to play, and may have two"
    )
    assert answer.next_session({"a": 1.0, "b": 0.5}, {"a": 1.0, "b": 1.0}, 2.0) == "b", "b ran dry first"


class _ReadersRule:
    def __init__(self, answer: ModuleType, sessions: dict[str, Watched]) -> None:
        self._answer = answer
        self._sessions = sessions
        self._dry_at = dict.fromkeys(sessions, 0.0)

    def next(self, now: float) -> str | float:
        plays = {name: each.pace.media_s for name, each in self._sessions.items()}
        found: str | None = self._answer.next_session(dict(self._dry_at), plays, now)
        return now + 0.01 if found is None else found

    def landed(self, name: str, now: float) -> None:
        self._dry_at[name] = max(now, self._dry_at[name]) + self._sessions[name].pace.media_s
