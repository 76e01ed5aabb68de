"""Chapter 1, what is asked of an answer."""

from __future__ import annotations

from types import ModuleType


def judge_rank_13_of_nodes_of_8_is_gpu_5_of_node_1(answer: ModuleType) -> None:
    assert answer.place_of(13, 8) == (1, 5), f"place_of(13, 8) is (1, 5), got {answer.place_of(13, 8)}"


def judge_every_rank_has_a_place_of_its_own(answer: ModuleType) -> None:
    places = {tuple(answer.place_of(rank, 4)) for rank in range(12)}
    assert places == {(node, gpu) for node in range(3) for gpu in range(4)}, (
        f"12 ranks are at {sorted(places)}"
    )


def judge_all_rows_are_given_out_once_and_in_order(answer: ModuleType) -> None:
    for rows, world in ((10, 3), (2, 4), (0, 2), (12, 4), (7, 1)):
        shared = [row for rank in range(world) for row in answer.rows_of(rank, world, rows)]
        assert shared == list(range(rows)), f"{rows} rows over {world} ranks became {shared}"


def judge_shares_differ_by_one_row_at_most_and_do_not_grow(answer: ModuleType) -> None:
    for rows, world in ((10, 3), (2, 4), (13, 5)):
        sizes = [len(answer.rows_of(rank, world, rows)) for rank in range(world)]
        assert max(sizes) - min(sizes) <= 1, f"{rows} rows over {world} ranks in shares of {sizes}"
        assert sizes == sorted(sizes, reverse=True), f"the larger shares come first, got {sizes}"
