"""Drawing of the ranks of a pipeline as lines of text: one character a unit of time."""

from __future__ import annotations

from collections.abc import Iterator

from course.chapters.pipeline_parallel.timelines import PipelinePass, RankPasses

LEGEND = (
    "digits: forward passes of micro-batch 0, 1, ...; a, b, ...: their backward passes; A, B, ...: only "
    "weights; dots: waiting"
)


def drawn_lines(timeline: RankPasses) -> Iterator[str]:
    """Yield one line for each rank; times are in whole units, from 0 on."""
    longest = max(round(each.end_s) for rank in timeline for each in rank)
    for number, rank in enumerate(timeline):
        cells = ["."] * longest
        for each in rank:
            for place in range(round(each.begin_s), round(each.end_s)):
                cells[place] = _letter(each)
        yield f"rank {number} |{''.join(cells)}|"


def _letter(each: PipelinePass) -> str:
    if each.kind == "F":
        return str(each.micro_batch)
    return chr(ord("A" if each.kind == "W" else "a") + each.micro_batch)
