"""What is counted of a person's stream while ranks are killed."""

from __future__ import annotations

from tests.soak.rank_kills import CallCount, Person


def counts(shown: list[int], queued: set[str], applied: set[str]) -> dict[str, int]:
    tally = CallCount()
    tally.add(Person(None, "p", queued=queued, applied=applied, chunks=shown))  # type: ignore[arg-type]
    return dict(tally.counts)


def test_chunks_that_come_twice_or_not_or_late_and_controls_that_are_lost_are_counted() -> None:
    assert counts([0, 1, 2, 3], {"a"}, {"a"}) == {"chunks": 4, "controls_acknowledged": 1}
    assert counts([0, 1, 1, 4, 3], {"a", "b", "c"}, {"b"}) == {
        "chunks": 5,
        "chunks_shown_twice": 1,
        "chunks_skipped": 1,
        "chunks_out_of_order": 1,
        "controls_acknowledged": 3,
        "controls_lost": 2,
    }
