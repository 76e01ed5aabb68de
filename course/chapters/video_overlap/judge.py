"""Video chapter 4, what is asked of an answer."""

from __future__ import annotations

from types import ModuleType

from millstream.core.overlap import ChunkPace


def judge_calls_are_counted_as_an_envelope_counts_them(answer: ModuleType) -> None:
    """Add them up; a commit is one call."""
    for steps, commits, rebuilt, expected in ((2, True, 0, 3), (2, True, 2, 5), (4, False, 6, 10)):
        found = answer.model_calls(steps, commits=commits, rebuilt_chunks=rebuilt)
        assert found == expected, (
            f"{steps} steps, commits {commits}, {rebuilt} rebuilt: {found}, not {expected}"
        )


def judge_a_period_is_the_sum_or_the_longer(answer: ModuleType) -> None:
    """Two workers, one after the other or at the same time."""
    assert answer.period_ms(80, 200, overlaps=False) == 280, f"{answer.period_ms(80, 200, overlaps=False)}"
    assert answer.period_ms(80, 200, overlaps=True) == answer.period_ms(200, 80, overlaps=True) == 200, (
        "the longer one"
    )


def judge_what_is_hidden_is_the_engines_score(answer: ModuleType) -> None:
    """Subtract the chunk's time from the sum of both, and divide by the shorter one."""
    for front, mesh, period in (
        (80.0, 200.0, 280.0),
        (80.0, 200.0, 200.0),
        (100.0, 100.0, 150.0),
        (50.0, 60.0, 130.0),
    ):
        expected = ChunkPace(stage0_ms=front, stage1_ms=mesh, period_ms=period).score
        found = answer.hidden_share(front, mesh, period)
        assert abs(found - expected) < 1e-9, (
            f"front {front}, mesh {mesh}, period {period}: {found}, not {expected}"
        )


def judge_one_in_flight_is_serial_and_two_overlap(answer: ModuleType) -> None:
    """Keep when the mesh is free, when the front is free, and when each chunk was shown: a chunk begins when
    all allow it."""
    assert list(answer.timeline(80, 200, 3, 1)) == [280, 560, 840], f"{answer.timeline(80, 200, 3, 1)}"
    assert list(answer.timeline(80, 200, 3, 2)) == [280, 480, 680], f"{answer.timeline(80, 200, 3, 2)}"
    assert list(answer.timeline(200, 80, 4, 2)) == [280, 480, 680, 880], f"{answer.timeline(200, 80, 4, 2)}"
