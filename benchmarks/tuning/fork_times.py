"""Sixteen futures of one past against sixteen streams with a past each, in seconds."""

from __future__ import annotations

import statistics
import time

import torch

from millstream.train.rl.rollouts import RolloutEngine, RolloutPlan

FUTURES = 16
PAST = 8
"""Futures of a group, and the chunks of past that they share."""


def fork_times(
    engine: RolloutEngine, *, groups: int, chunks: int, futures: int, past: int, times: int
) -> dict[str, float]:
    """Time groups with one past each against groups in which each stream has its own: until they are
    streamed, and until they are pictures on the device, where rewards are computed. Own pasts are made into
    pictures too, as viewers see them. The median of the last three `times` counts."""
    prompts = (engine.model.spec.default_prompt,) * groups
    plans = {
        "one_past": RolloutPlan(prompts=prompts, group=futures, chunks=chunks, fork_at=past, seed=0),
        "own_pasts": RolloutPlan(prompts=prompts * futures, group=1, chunks=chunks, fork_at=past, seed=0),
    }
    found: dict[str, float] = {
        "groups": groups,
        "futures": futures,
        "chunks_of_past": past,
        "chunks_of_future": chunks,
    }
    for name, plan in plans.items():
        measured = [_seconds(engine, plan) for _ in range(times)]  # the first of several warms up
        streamed, shown = (statistics.median(each) for each in zip(*measured[-3:], strict=True))
        found |= {
            f"{name}_s": shown,
            f"{name}_streamed_s": streamed,
            f"{name}_sample_ms": 1e3 * shown / (groups * futures),
        }
    better = {
        f"times_better{way}": found[f"own_pasts{way}_s"] / found[f"one_past{way}_s"]
        for way in ("", "_streamed")
    }
    return found | better


def _seconds(engine: RolloutEngine, plan: RolloutPlan) -> tuple[float, float]:
    """Until everything is streamed, and until it is pictures."""
    begun = time.perf_counter()
    made = engine.roll(plan)
    streamed = _when_done(engine) - begun
    engine.show(made)
    return streamed, _when_done(engine) - begun


def _when_done(engine: RolloutEngine) -> float:
    if engine.model.device.type == "cuda":
        torch.cuda.synchronize(engine.model.device)
    return time.perf_counter()
