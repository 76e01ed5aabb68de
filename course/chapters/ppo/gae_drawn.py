"""One voyage, decision by decision: rewards, what was expected, and advantages for several lambdas."""

from __future__ import annotations

import torch

from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.train.rl.advantages import generalised

REWARDS = (0.0, 0.0, 0.0, 0.0, 1.0)
VALUES = (0.4, 0.5, 0.2, 0.6, 0.8)
"""Values that a critic gave before each decision: the second one disappointed it."""


def run(reader: Reader, trace: float = 0.5) -> None:
    if not 0 <= trace <= 1:
        raise CourseError(f"--trace must be 0 to 1, got {trace:g}")
    reward = torch.tensor([REWARDS])
    value = torch.tensor([VALUES])
    guess = reader.predict(
        f"reward {REWARDS[-1]:g} at the end, the critic said {VALUES[-1]:g} before it. What is the last "
        "advantage?"
    )
    last = generalised(reward, value, discount=1.0, trace=trace)[0]
    reader.reveal(
        guess,
        float(last[0, -1]),
        by="train.policy.advantages.generalised: nothing comes after, so reward - value",
        tolerance=0.01,
    )
    reader.say(f"critic:       {row(value)}")
    for each in sorted({0.0, trace, 0.95, 1.0}):
        advantage, _ = generalised(reward, value, discount=1.0, trace=each)
        reader.say(f"lambda {each:4g}:  {row(advantage)}")
    first = generalised(reward, value, discount=1.0, trace=1.0)[0][0]
    assert torch.allclose(first, reward.sum() - value[0]), (
        "with lambda 1: all that came, less what was expected"
    )
    none = generalised(reward, value, discount=1.0, trace=0.0)[0][0]
    assert torch.allclose(none[:-1], value[0, 1:] - value[0, :-1]), (
        "with lambda 0: what the critic learnt in one step"
    )
    reader.say(
        "lambda 0 blames the one decision that disappointed the critic; lambda 1 praises all for the end"
    )


def row(numbers: torch.Tensor) -> str:
    return " ".join(f"{float(each):+6.2f}" for each in numbers[0])
