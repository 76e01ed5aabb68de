"""Chapter 7, what is asked of an answer."""

from __future__ import annotations

from types import ModuleType

from course.chapters.pipeline_parallel.activations_held import most_held
from course.chapters.pipeline_parallel.timelines import UNITS, PipelinePass, RankPasses, replayed, waits
from millstream.planner.bubbles import bubble, held_micro_batches

CASES = ((2, 4), (3, 5), (4, 4), (4, 12))


def judge_so_many_micro_batches_are_enough_and_one_less_is_not(answer: ModuleType) -> None:
    for stages, most in ((4, 0.1), (8, 0.2), (2, 0.5)):
        parts = answer.micro_batches_for(stages, most)
        assert bubble("1f1b", stages, parts) <= most, (
            f"{stages} stages wait more than {most:.0%} with {parts} micro-batches"
        )
        assert parts == 1 or bubble("1f1b", stages, parts - 1) > most, (
            f"{stages} stages, {most:.0%}: {parts - 1} would do"
        )


def judge_the_order_can_be_followed_and_waits_as_the_formula_says(answer: ModuleType) -> None:
    for stages, parts in CASES:
        found = waits(replayed(passes(answer, stages, parts), lambda each: UNITS[each.kind]))
        expected = bubble("1f1b", stages, parts)
        assert abs(found - expected) < 1e-9, (
            f"{stages} stages, {parts} micro-batches: waits {found:.1%}, not {expected:.1%}"
        )


def judge_a_stage_holds_no_more_than_1f1b_needs(answer: ModuleType) -> None:
    for stages, parts in CASES:
        held = max(most_held(rank) for rank in passes(answer, stages, parts))
        expected = held_micro_batches("1f1b", stages, parts)
        assert held == expected, (
            f"{stages} stages, {parts} micro-batches: {held} are held, 1F1B holds {expected:g}"
        )


def passes(answer: ModuleType, stages: int, parts: int) -> RankPasses:
    """Return the passes of every stage of an answer: all micro-batches once forward and once back."""
    orders = [answer.order_1f1b(stage, stages, parts) for stage in range(stages)]
    everything = sorted((kind, part) for kind in "BF" for part in range(parts))
    assert all(sorted(order) == everything for order in orders), (
        f"each micro-batch goes forward once and back once: {orders}"
    )
    return [
        [PipelinePass(kind, stage, part, 0.0, 0.0) for kind, part in order]
        for stage, order in enumerate(orders)
    ]
