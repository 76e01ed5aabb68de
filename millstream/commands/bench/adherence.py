"""Adherence of a trained Brook to its prompts: whether it is as good on the fast path as on the plain one,
and for as long.

A classifier that was trained on renders alone judges the same prompts and seeds on both. Points are
hundredths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.core.errors import ConfigError
from millstream.core.speed import Speed
from millstream.engine.engine import Engine
from millstream.train.evaluate.adherence import judge_prompts
from millstream.train.evaluate.classifier import JUDGE, load_classifier

SECONDS = (2.0, 10.0, 30.0)
"""When the streams are looked at: the difference between first and last is drift."""
LIMIT_POINTS = 1.0


def compare_adherence(weights: Sequence[str], speed: Speed, *, device: str, count: int) -> dict[str, Any]:
    """Mean adherence at each second, plain and fast, of `count` prompts; `lost_points` is the most that is
    lost."""
    if count < 2:
        raise ConfigError(f"--prompts must be 0 for none or at least 2, got {count}")
    plain, fast = (_means(weights, each, device, count) for each in (Speed(), speed))
    lost = [100 * (before - after) for before, after in zip(plain, fast, strict=True)]
    drift = 100 * ((plain[-1] - plain[0]) - (fast[-1] - fast[0]))
    return {
        "seconds": list(SECONDS),
        "plain": plain,
        "fast": fast,
        "lost_points": max(lost),
        "drift_points": drift,
        "holds": max(lost) <= LIMIT_POINTS and drift <= LIMIT_POINTS,
    }


def _means(weights: Sequence[str], speed: Speed, device: str, count: int) -> list[float]:
    engine = Engine("brook", weights=weights, device=device, dtype="bfloat16", speed=speed)
    judge = load_classifier(JUDGE, engine.device)
    judged = judge_prompts(
        engine.model,
        judge,
        config=engine.stream_config(),
        held_out=False,
        count=count,
        seconds=SECONDS,
        tick=lambda: None,
    )
    return [moment.mean for moment in judged.moments]
