"""PPO on the tiny language model: it learns to write what is liked, and is held to what it was."""

from __future__ import annotations

import math

import torch

from millstream.core.errors import CourseError
from millstream.course.chapters.four_models.preferences import LIKED, learnt_reward
from millstream.course.chapters.four_models.roles import Roles, write
from millstream.course.confidence import Interval, of_share
from millstream.course.reader import Reader
from millstream.course.tinylm.model import TinyLM
from millstream.course.tinylm.text import COLOURS, is_sentence
from millstream.trainer.policy.control import DivergenceControl

TARGET, BEYOND = 2.0, 15.0
"""Nats of a sentence from the reference."""
SENTENCES, JUDGED = 24, 80


def run(reader: Reader, steps: int = 16) -> None:
    if not 2 <= steps <= 200:
        raise CourseError(f"--steps must be 2 to 200, got {steps}")
    guess = reader.predict(
        f"a model that writes one of {len(COLOURS)} colours only: how many nats is it from one that draws evenly?"
    )
    reader.reveal(guess, math.log(len(COLOURS)), by="the logarithm of how many there are", tolerance=0.05)
    roles = Roles(learnt_reward()[0], DivergenceControl(0.1, TARGET, BEYOND))
    made = torch.Generator().manual_seed(0)
    before = judged(roles.actor)
    for step in range(steps):
        found = roles.step(SENTENCES, made)
        if step % 5 == 0 or step == steps - 1:
            price = roles.control.coefficient
            reader.measured(f"step {step:2}: reward {found['reward']:+6.2f}, {found['kl']:5.2f} nats away, at {price:.3f} each")
    after = judged(roles.actor)
    for name, (liked, right) in (("before", before), ("after", after)):
        reader.measured(f"{name:7} {LIKED}: 95% in {_percent(liked)}; sentences of the grammar: 95% in {_percent(right)}")
    assert steps < 16 or after[0].low > before[0].high, f"{LIKED}: {after[0]} after, {before[0]} before"
    assert steps < 16 or after[1].high > 0.8 * before[1].low, f"the grammar is lost: {after[1]}"
    reader.say("the share of what is liked has grown beyond chance; most sentences are still sentences, and some are the price")


def judged(lm: TinyLM) -> tuple[Interval, Interval]:
    """How many sentences have what is liked, and how many are of the grammar: by rules that no reward model has seen."""
    texts = write(lm, JUDGED, torch.Generator().manual_seed(1)).texts
    liked, right = sum(LIKED in text for text in texts), sum(map(is_sentence, texts))
    return of_share(liked, JUDGED), of_share(right, JUDGED)


def _percent(interval: Interval) -> str:
    return f"{interval.low:.0%} to {interval.high:.0%}"
