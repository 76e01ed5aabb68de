"""Rows come in the order of steps from wherever a run is, and the time without them is counted."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from millstream.train.finetune.loader import AHEAD, RowLoader
from millstream.train.finetune.meter import TuningReport
from millstream.train.parallel.task import FlowRows

CPU = torch.device("cpu")


def rows_of(step: int) -> FlowRows:
    return FlowRows(*(torch.full((1,), float(step)) for _ in range(4)))


def taken(loader: RowLoader, count: int) -> list[int]:
    return [int(loader.next().latents_BFCYX) for _ in range(count)]


def test_rows_come_in_order_from_any_position() -> None:
    with RowLoader(rows_of, CPU, position=7) as loader:
        assert (taken(loader, 3), loader.position) == ([7, 8, 9], 10)
        loader.seek(4)
        assert (taken(loader, 2), loader.position) == ([4, 5], 6)


def test_what_is_made_after_a_seek_is_made_anew() -> None:
    made = list[int]()
    with RowLoader(
        lambda step: rows_of(100 * len(made)) if made else rows_of(step), CPU, position=0
    ) as loader:
        assert taken(loader, 2) == [0, 1]
        made.append(1)
        loader.seek(1)
        assert taken(loader, 1) == [100], "not the rows that were made ahead with what was true before"


def test_a_few_steps_are_made_ahead_and_no_more() -> None:
    asked = list[int]()
    enough = threading.Event()

    def make(step: int) -> FlowRows:
        asked.append(step)
        if step == AHEAD:
            enough.set()
        return rows_of(step)

    with RowLoader(make, CPU, position=0) as loader:
        loader.next()
        assert enough.wait(10.0)
    assert asked == list(range(AHEAD + 1))


def test_what_breaks_while_rows_are_made_is_raised_where_they_are_asked_for() -> None:
    def broken(step: int) -> FlowRows:
        raise OSError("the disk is gone")

    with RowLoader(broken, CPU, position=0) as loader, pytest.raises(OSError, match="the disk is gone"):
        loader.next()


def test_time_without_rows_is_counted() -> None:
    def slow(step: int) -> FlowRows:
        time.sleep(0.05)
        return rows_of(step)

    with RowLoader(slow, CPU, position=0) as loader:
        begun = time.perf_counter()
        taken(loader, 4)
        assert 0.15 <= loader.waited_s <= time.perf_counter() - begun


def report(seconds: float, tokens: int, waited_s: float, pairs: float = 0.0, step: int = 0) -> TuningReport:
    given = dict(step=step, total=109, losses={}, lr=1.0, steps=5)
    return TuningReport(**given, seconds=seconds, tokens=tokens, pairs=pairs, waited_s=waited_s)  # type: ignore[arg-type]


def test_a_report_since_another_is_of_what_came_between() -> None:
    first = report(10.0, 1000, 4.0, 8e3)
    second = report(30.0, 5000, 5.0, 88e3)
    between = second.since(first)
    assert (between.seconds, between.tokens, between.waiting, between.keys_per_query) == (
        20.0,
        4000,
        0.05,
        20.0,
    )
    assert (first.since(None), first.waiting) == (first, 0.4)
    assert report(0.0, 0, 0.0).waiting == report(0.0, 0, 0.0).keys_per_query == 0.0


def test_the_time_left_goes_by_the_steps_of_this_life() -> None:
    """Taken up again at step 94, five steps have taken ten seconds, and ten are left."""
    assert report(10.0, 1, 0.0, step=98).left_s == 20.0
    assert report(10.0, 1, 0.0, step=108).left_s == 0.0
