"""Chapter 12, what is asked of an answer."""

from __future__ import annotations

from types import ModuleType

import torch

from millstream.train.rl.advantages import generalised
from millstream.train.rl.objective import clipped_policy


def judge_advantages_are_those_of_the_trainer(answer: ModuleType) -> None:
    made = torch.Generator().manual_seed(0)
    for discount, trace in ((1.0, 1.0), (1.0, 0.0), (0.9, 0.95)):
        rewards, values = torch.rand(2, 7, generator=made, dtype=torch.float64)
        expected = generalised(rewards[None], values[None], discount=discount, trace=trace)[0][0]
        found = torch.tensor(
            answer.gae(rewards.tolist(), values.tolist(), discount, trace), dtype=torch.float64
        )
        assert torch.allclose(found, expected, atol=1e-9), (
            f"{found.tolist()}, the train has {expected.tolist()}"
        )


def judge_the_objective_is_that_of_the_trainer(answer: ModuleType) -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    for ratio in (0.5, 0.9, 1.0, 1.1, 1.5):
        for advantage in (1.0, -2.0):
            expected = -float(clipped_policy((ratio * one).log(), 0 * one, advantage * one, one, 0.2).loss)
            found = answer.clipped_objective(ratio, advantage, 0.2)
            assert abs(found - expected) < 1e-9, (
                f"ratio {ratio}, advantage {advantage}: {found}, not {expected}"
            )
