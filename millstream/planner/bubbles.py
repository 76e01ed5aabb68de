"""Pipeline schedules: the share of time that stages idle, and how many micro-batches' activations they hold.

p stages, m micro-batches, v model chunks per stage. 1F1B saves memory, not bubble; zero-bubble fills it with
the weights' share of the backward pass. A forward pass and either half of a backward pass count as equally
long.
"""

from __future__ import annotations

from typing import Literal, get_args

from millstream.core.errors import ConfigError

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble-h1", "zero-bubble-h2"]
TRAINED: dict[str, Schedule] = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved": "interleaved",
    "zero-bubble": "zero-bubble-h1",
    "zbv": "zero-bubble-h1",
}
"""This planner's schedule for each schedule of a training plan. Both of torch's zero-bubble ones are H1, in
loops or (from m = 2p on) in a V."""


def bubble(schedule: Schedule, stages: int, micro_batches: int, *, chunks: int = 1) -> float:
    _check(schedule, stages, micro_batches, chunks)
    p = stages
    m = micro_batches
    plain = (p - 1) / (m + p - 1)
    return {
        "gpipe": plain,
        "1f1b": plain,
        "interleaved": (p - 1) / (chunks * m + p - 1),
        "zero-bubble-h1": ((p - 1) / 3) / (chunks * m + (p - 1) / 3),
        "zero-bubble-h2": 0.0,
    }[schedule]


def held_micro_batches(schedule: Schedule, stages: int, micro_batches: int, *, chunks: int = 1) -> float:
    """Activations on the fullest stage, in micro-batches of its layers."""
    _check(schedule, stages, micro_batches, chunks)
    p = stages
    m = micro_batches
    return {
        "gpipe": float(m),
        "1f1b": float(min(m, p)),
        "interleaved": min(m, p) * (1 + (p - 1) / (p * chunks)),
        "zero-bubble-h1": float(min(m, p)),
        "zero-bubble-h2": float(min(m, 2 * p - 1)),
    }[schedule]


def _check(schedule: Schedule, stages: int, micro_batches: int, chunks: int) -> None:
    if schedule not in get_args(Schedule):
        raise ConfigError(f"schedule {schedule!r} is unknown; known: {', '.join(get_args(Schedule))}")
    if min(stages, micro_batches, chunks) < 1:
        raise ConfigError(
            f"stages, micro-batches and chunks must be 1 or more, got {stages}, {micro_batches}, {chunks}"
        )
