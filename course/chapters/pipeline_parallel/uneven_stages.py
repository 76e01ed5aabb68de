"""One stage takes longer than the others: the order that ran is played again with such times, and all wait
for that stage."""

from __future__ import annotations

from course.chapters.pipeline_parallel.drawing import drawn_lines
from course.chapters.pipeline_parallel.timelines import (
    RANKS,
    UNITS,
    recorded_steps,
    replayed,
    seconds_of,
    waits,
)
from course.reader import Reader
from millstream.parallel.apply import even_bounds


def run(reader: Reader, times: int = 2) -> None:
    (timeline,) = recorded_steps("1f1b", 1)
    even = replayed(timeline, lambda each: UNITS[each.kind])
    uneven = replayed(timeline, lambda each: UNITS[each.kind] * (times if each.part == RANKS - 1 else 1))
    reader.say(f"1F1B as it ran, then with the last stage {times} times as slow (played again, not measured)")
    for name, found in (("even", even), ("uneven", uneven)):
        reader.say(f"{name}: {seconds_of(found):g} turns, ranks wait {waits(found):.1%}")
        for line in drawn_lines(found):
            reader.say(f"  {line}")
    assert times < 2 or waits(uneven) > waits(even), "unequal stages wait longer"
    reader.say(
        "symptom: the first rank looks idle, though it is not the problem; tool: the busy time of every "
        "rank, side by side"
    )
    begins = even_bounds(8, 2)
    reader.say(
        f"fix: equal times, not equal layers; the engine begins with {begins} for 8 layers, and moves them "
        "by measurement"
    )
