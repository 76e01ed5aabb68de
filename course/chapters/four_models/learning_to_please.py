"""PPO on the tiny language model: it learns to write what is liked, and is held to what it was."""

from __future__ import annotations

import math

import torch

from course.chapters.four_models.preferences import LIKED, learnt_reward
from course.chapters.four_models.roles import Roles, write
from course.confidence import Interval, of_share
from course.reader import Reader
from course.tinylm.model import TinyLM
from course.tinylm.text import COLOURS, is_sentence
from millstream.core.errors import CourseError
from millstream.train.rl.control import DivergenceControl

TARGET = 2.0
BEYOND = 15.0
"""Nats of a sentence from the reference."""
SENTENCES = 24
JUDGED = 80


def run(reader: Reader, steps: int = 16) -> None:
    if not 2 <= steps <= 200:
        raise CourseError(f"--steps must be 2 to 200, got {steps}")
    guess = reader.predict(
        f"a model that writes one of {len(COLOURS)} colours only: how many nats is it from one that draws "
        "evenly?"
    )
    reader.reveal(guess, math.log(len(COLOURS)), by="the logarithm of how many there are", tolerance=0.05)
    roles = Roles(learnt_reward()[0], DivergenceControl(0.1, TARGET, BEYOND))
    made = torch.Generator().manual_seed(0)
    before = judged(roles.actor)
    for step in range(steps):
        found = roles.step(SENTENCES, made)
        if step % 5 == 0 or step == steps - 1:
            price = roles.control.coefficient
            reader.measured(
                f"step {step:2}: reward {found['reward']:+6.2f}, {found['kl']:5.2f} nats away, at "
                f"{price:.3f} each"
            )
    after = judged(roles.actor)
    for name, (liked, right) in (("before", before), ("after", after)):
        reader.measured(
            f"{name:7} {LIKED}: 95% in {_percent(liked)}; sentences of the grammar: 95% in {_percent(right)}"
        )
    assert steps < 16 or after[0].low > before[0].high, f"{LIKED}: {after[0]} after, {before[0]} before"
    assert steps < 16 or after[1].high > 0.8 * before[1].low, f"the grammar is lost: {after[1]}"
    reader.say(
        "the share of what is liked has grown beyond chance; most sentences are still sentences, and some "
        "are the price"
    )


def judged(lm: TinyLM) -> tuple[Interval, Interval]:
    """Count sentences that have what is liked, and those that follow the grammar: by rules that no reward
    model has seen."""
    texts = write(lm, JUDGED, torch.Generator().manual_seed(1)).texts
    liked = sum(LIKED in text for text in texts)
    right = sum(map(is_sentence, texts))
    return of_share(liked, JUDGED), of_share(right, JUDGED)


def _percent(interval: Interval) -> str:
    return f"{interval.low:.0%} to {interval.high:.0%}"
