"""Algorithms of tuning by reward, one class each: the advantages they compute, the loss they follow, and the
state they keep besides.

Four roles: the actor learns here, a copy of it rolls out (`rollouts.py`), the critic is PPO's, the reference
is what the actor was. `matching` is in a file of its own.
Shapes: B rows, T moments (learnt steps of all chunks, in their order), L learnt steps of a chunk, K chunks, F
frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from millstream.core.config import StreamConfig
from millstream.models.dit import CausalDiT
from millstream.train.parallel.precision import in_precision
from millstream.train.rl.advantages import best_of_group, generalised, group_relative, standardised
from millstream.train.rl.critic import StreamCritic
from millstream.train.rl.learner import (
    Algorithm,
    LearnerOptions,
    Load,
    PolicyLearner,
    ReferenceLearner,
    StreamSide,
)
from millstream.train.rl.matching import RewardMatching
from millstream.train.rl.objective import ClippedPolicy
from millstream.train.rl.rollouts import Trajectories
from millstream.train.rl.steps import GaussianStep, StepNoise

PictureWorth = Callable[[Trajectories, Tensor, Tensor], Tensor]
"""Function that returns what finished chunks of these rows are worth [B], with gradients back to them."""


class GRPO(ReferenceLearner):
    """GRPO: compares the streams of a group; all steps of a stream count by how far its reward is from the
    group's mean."""

    def _advantages(
        self, made: Trajectories, reward_B: Tensor, known_B: Tensor, group: int
    ) -> tuple[Tensor, dict[str, float]]:
        return group_relative(reward_B, known_B, group)[:, None, None].expand(made.log_density_BLK.shape), {}


class BestOfN(ReferenceLearner):
    """Best of n, the baseline: learns to repeat the best of each group."""

    def _advantages(
        self, made: Trajectories, reward_B: Tensor, known_B: Tensor, group: int
    ) -> tuple[Tensor, dict[str, float]]:
        return best_of_group(reward_B, known_B, group)[:, None, None].expand(made.log_density_BLK.shape), {}


class PPO(ReferenceLearner):
    """Proximal policy optimisation with a critic, which predicts before each step what the stream will be
    worth."""

    least_group: ClassVar[int] = 1
    has_critic: ClassVar[bool] = True

    def __init__(
        self,
        actor: CausalDiT,
        reference: CausalDiT,
        noise: StepNoise,
        config: StreamConfig,
        options: LearnerOptions,
        device: torch.device,
    ) -> None:
        super().__init__(actor, reference, noise, config, options, device)
        self.critic = StreamCritic(
            channels=actor.config.channels,
            frames_per_chunk=config.frames_per_chunk,
            text_width=actor.config.text_width,
        ).to(device)
        self._critic_optimiser = torch.optim.AdamW(
            self.critic.parameters(), lr=options.critic_lr, weight_decay=0.0
        )

    def state(self) -> dict[str, Any]:
        critic = {"critic": self.critic.state_dict(), "critic_optimiser": self._critic_optimiser.state_dict()}
        return super().state() | critic

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.critic.load_state_dict(state["critic"])
        self._critic_optimiser.load_state_dict(state["critic_optimiser"])

    @property
    def _held(self) -> list[tuple[nn.Module, torch.optim.Optimizer | None]]:
        return [*super()._held, (self.critic, self._critic_optimiser)]

    def _advantages(
        self, made: Trajectories, reward_B: Tensor, known_B: Tensor, group: int
    ) -> tuple[Tensor, dict[str, float]]:
        options = self._options
        shape = made.log_density_BLK.shape
        with torch.no_grad():
            value_BT = self._values(made)
        reward_BT = torch.zeros_like(value_BT)
        reward_BT[:, -1] = reward_B
        advantage_BT, return_BT = generalised(
            reward_BT, value_BT, discount=options.discount, trace=options.trace
        )
        error = self._teach_critic(made, return_BT, known_B)
        by_moment = standardised(advantage_BT, known_B)  # chunk after chunk, and in each step after step
        return by_moment.unflatten(1, (shape[2], shape[1])).transpose(1, 2), {"critic": error}

    def _values(self, made: Trajectories) -> Tensor:
        """Return the critic's prediction before each step, [B, K * L] in the order in which they were
        taken."""
        frames = self._config.frames_per_chunk
        stream = torch.cat([made.past_BFCYX, made.clean_BFCYX], dim=1).float()
        first = made.past_BFCYX.shape[1] // frames
        values = []
        for chunk in range(made.clean_BFCYX.shape[1] // frames):
            here = slice(chunk * frames, (chunk + 1) * frames)
            end = (first + chunk) * frames
            before = stream[:, end - frames : end] if end else torch.zeros_like(made.starts[0][:, here])
            for number in self._noise.learnt:
                level = self._noise.levels[number]
                start = made.starts[number][:, here]
                values.append(self.critic(start, before, made.text_BSE, level, first + chunk))
        return torch.stack(values, dim=1)

    def _teach_critic(self, made: Trajectories, return_BT: Tensor, known_B: Tensor) -> float:
        """Train the critic; return its error before the first of its steps."""
        errors = list[float]()
        for _ in range(self._options.critic_epochs):
            loss = (self._values(made) - return_BT)[known_B].square().mean()
            self._critic_optimiser.zero_grad(set_to_none=True)
            loss.backward()
            self._critic_optimiser.step()
            errors.append(float(loss.detach()))
        return errors[0]


class RewardGradient(ReferenceLearner):
    """Algorithm that follows the gradient of the rewards' pixels in the place of densities: every row counts,
    and none are compared."""

    least_group: ClassVar[int] = 1
    takes_older: ClassVar[bool] = False
    follows_pixels: ClassVar[bool] = True

    def __init__(
        self,
        actor: CausalDiT,
        reference: CausalDiT,
        noise: StepNoise,
        config: StreamConfig,
        options: LearnerOptions,
        device: torch.device,
        worth: PictureWorth,
    ) -> None:
        super().__init__(actor, reference, noise, config, options, device)
        self._worth = worth

    @classmethod
    def create(
        cls,
        actor: CausalDiT,
        load: Load,
        streams: StreamSide | None,
        noise: StepNoise,
        config: StreamConfig,
        options: LearnerOptions,
        device: torch.device,
    ) -> RewardGradient:
        assert streams is not None, "pictures are made on the device that learns"
        return cls(actor, load("reference"), noise, config, options, device, streams.worth)

    def _advantages(
        self, made: Trajectories, reward_B: Tensor, known_B: Tensor, group: int
    ) -> tuple[Tensor, dict[str, float]]:
        return torch.ones_like(made.log_density_BLK), {}

    def _loss(
        self,
        made: Trajectories,
        steps: list[GaussianStep],
        policy: ClippedPolicy,
        advantage_BLK: Tensor,
        rows: Tensor,
        count: int,
    ) -> Tensor:
        worth_B = self._worth(made, self.finished(made, steps, rows), rows)
        return -(worth_B * advantage_BLK.mean(dim=(1, 2))).sum() / count

    def finished(self, made: Trajectories, steps: list[GaussianStep], rows: Tensor) -> Tensor:
        """Return the chunks as they were made, with gradients to all steps' means, through the steps and the
        chunks after them: noise that was drawn stays what it was. Weights learn by every step, or only by
        those that the recipe names."""
        frames = self._config.frames_per_chunk
        before = made.past_BFCYX[rows].float()
        weights = {name: parameter.detach() for name, parameter in self.actor.named_parameters()}
        with torch.no_grad(), in_precision(self._options.precision, self._device):
            cross = self.actor.read_prompt(made.text_BSE[rows])

        def still(*told: object) -> Tensor:
            flow: Tensor = functional_call(self.actor, weights, told)
            return flow

        for first in range(0, made.clean_BFCYX.shape[1], frames):
            here = slice(first, first + frames)
            current = made.starts[0][rows, here]
            ends = [*made.starts[1:], made.clean_BFCYX]
            for number, step in enumerate(steps):
                mean = step.mean_BFCYX[:, here]
                mean = mean if number in (self._noise.only or range(len(steps))) else mean.detach()
                if current.requires_grad or before.requires_grad:
                    moved = self._steps(still, before, before.shape[1], {number: current}, cross)[
                        0
                    ].mean_BFCYX
                    mean = mean + moved - moved.detach()
                current = ends[number][rows, here].float() + mean - mean.detach()
            before = torch.cat([before, current], dim=1)
        return before[:, made.past_BFCYX.shape[1] :]


ALGORITHMS: dict[Algorithm, type[PolicyLearner]] = {
    "grpo": GRPO,
    "ppo": PPO,
    "best-of-n": BestOfN,
    "gradient": RewardGradient,
    "matching": RewardMatching,
}
