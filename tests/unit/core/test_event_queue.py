"""Events of a simulation come in their order."""

from __future__ import annotations

from millstream.core.event_queue import EventQueue


def test_events_come_by_their_time_and_those_of_one_time_as_they_were_added() -> None:
    queue = EventQueue()
    seen = list[tuple[float, str]]()

    def note(now: float, name: str) -> None:
        seen.append((now, name))
        if name == "first":
            queue.at(now, note, "added by it")

    for when, name in ((2.0, "first"), (2.0, "second"), (1.0, "before"), (3.0, "beyond")):
        queue.at(when, note, name)
    queue.run(2.5)
    assert seen == [(1.0, "before"), (2.0, "first"), (2.0, "second"), (2.0, "added by it")]


def test_a_run_stops_where_its_caller_says() -> None:
    queue = EventQueue()
    seen = list[float]()
    for when in (1.0, 2.0, 3.0):
        queue.at(when, seen.append)
    queue.run(10.0, lambda: len(seen) < 2)
    assert seen == [1.0, 2.0]
