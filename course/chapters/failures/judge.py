"""The failure lab, what is asked of an answer."""

from __future__ import annotations

from types import ModuleType

from course.chapters.collectives.desynchronised_rank import sums_of
from millstream.mesh.local_ranks import on_ranks


def judge_the_first_collective_that_differs_is_found(answer: ModuleType) -> None:
    """Walk through all records side by side; itertools.zip_longest goes on to the end of the longest."""
    for records, expected in (
        ([["a", "b"], ["a", "b"]], None),
        ([["a", "b", "c"], ["a", "c", "c"]], 1),
        ([["a", "b"], ["a"]], 1),
        ([["a"], ["a"], ["b"]], 0),
    ):
        assert answer.first_difference(records) == expected, (
            f"{records}: {answer.first_difference(records)}, not {expected}"
        )


def judge_it_is_found_in_the_records_of_real_ranks(answer: ModuleType) -> None:
    """Use the same function; here it gets what two ranks recorded."""
    records = [calls for _, calls in on_ranks(sums_of, 2)]
    assert answer.first_difference(records) == 0, f"{records}"


def judge_the_slow_rank_is_found_by_what_it_does_alone(answer: ModuleType) -> None:
    """Compare own_s with its median; step_s is there to mislead you."""
    for own, whole, expected in (
        ([1.0, 3.0, 1.1], [3.1, 3.0, 3.1], 1),
        ([1.0, 1.1, 1.2], [9.0, 1.1, 1.2], None),
        ([2.0, 1.0, 1.0, 1.0], [2.1, 2.1, 2.1, 2.1], 0),
    ):
        assert answer.slow_rank(own, whole) == expected, (
            f"{own}: {answer.slow_rank(own, whole)}, not {expected}"
        )


def judge_pages_fit_where_one_piece_does_not(answer: ModuleType) -> None:
    """A hole holds as many whole pages as divide into it; what is asked for is rounded up to pages."""
    for holes, asked, page, expected in (
        ([4, 4, 4], 8, None, False),
        ([4, 4, 4], 8, 4, True),
        ([4, 4, 4], 13, 4, False),
        ([3, 3, 3], 4, 4, False),
        ([9, 1], 8, None, True),
        ([], 1, None, False),
    ):
        assert answer.fits(holes, asked, page) is expected, f"{asked} of {holes} in pages of {page}"
