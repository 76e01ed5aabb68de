"""Reward-weighted distribution matching: pictures are pulled to where a teacher would have them more than a
critic, who knows only the actor's own, thinks they are; those that were rewarded more, more strongly.

Needs a teacher of many steps and no densities. The pull itself is `distil/judges.py`; groups are compared as
GRPO does.
Shapes: B rows, F frames, C latent channels, Y and X latent rows and columns, S text tokens, E text width.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from millstream.core.config import StreamConfig
from millstream.models import sampler
from millstream.models.dit import CausalDiT
from millstream.train.distil.judges import MARGIN, pulled
from millstream.train.loop import keyed_generator
from millstream.train.noising import Noised, clean_estimate, noised
from millstream.train.parallel.precision import in_precision
from millstream.train.rl.advantages import group_relative
from millstream.train.rl.clipped_adamw import ClippedAdamW
from millstream.train.rl.learner import LearnerOptions, Load, PolicyLearner, StreamSide
from millstream.train.rl.rollouts import Trajectories
from millstream.train.rl.steps import StepNoise
from millstream.train.rollout import guided_flow
from millstream.train.sequence import forced_flow

CRITIC_DECAY = 0.01
"""Weight decay of the critic, AdamW's default."""


class RewardMatching(PolicyLearner):
    """Algorithm with an actor, a teacher, and a critic that begins as the teacher."""

    needs_teacher: ClassVar[bool] = True
    takes_older: ClassVar[bool] = False

    def __init__(
        self,
        actor: CausalDiT,
        teacher: CausalDiT,
        no_prompt_1SE: Tensor,
        noise: StepNoise,
        config: StreamConfig,
        options: LearnerOptions,
        device: torch.device,
    ) -> None:
        super().__init__(actor, noise, config, options, device)
        self._no_prompt_1SE = no_prompt_1SE
        self._critic = copy.deepcopy(teacher).requires_grad_(requires_grad=True)
        self._teacher = teacher.requires_grad_(requires_grad=False).eval()
        self._critic_optimiser = ClippedAdamW(
            self._critic.parameters(),
            lr=options.critic_lr,
            weight_decay=CRITIC_DECAY,
            grad_clip=options.grad_clip,
        )

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
    ) -> RewardMatching:
        assert streams is not None, "prompts are read on the device that learns"
        return cls(actor, load("teacher"), streams.read(("",)), noise, config, options, device)

    def learn(self, made: Trajectories, reward_B: Tensor, known_B: Tensor, group: int) -> dict[str, float]:
        """Take a step of the critic, then one of the actor, from one batch of rollouts."""
        assert made.version == self.version, (
            f"rollouts of version {made.version} for a policy of version {self.version}"
        )
        if not known_B.any():
            return {}
        generator = keyed_generator(self._device, "matching", self.version)
        weight_B = reward_weights(reward_B, known_B, group, self._options.temperature)
        number = int(torch.randint(len(self._noise.levels), (), generator=generator, device=self._device))
        rows = torch.arange(len(made), device=self._device)[known_B].split(self._options.rows_at_once)
        critic = sum(self._critic_part(made, part, int(known_B.sum()), generator) for part in rows)
        critic_norm = self._critic_optimiser.step()
        match = sum(self._actor_part(made, part, number, weight_B, generator) for part in rows)
        norm = self._optimiser.step()
        self.version += 1
        return {
            "match": match,
            "critic": critic,
            "norm": norm,
            "critic_norm": critic_norm,
            "most_weight": float(weight_B.max()),
        }

    @property
    def _held(self) -> list[tuple[nn.Module, torch.optim.Optimizer | None]]:
        return [(self._teacher, None), (self._critic, self._critic_optimiser.inner)]

    def state(self) -> dict[str, Any]:
        critic = {
            "critic": self._critic.state_dict(),
            "critic_optimiser": self._critic_optimiser.state_dict(),
        }
        return super().state() | critic

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._critic.load_state_dict(state["critic"])
        self._critic_optimiser.load_state_dict(state["critic_optimiser"])

    def _critic_part(self, made: Trajectories, rows: Tensor, count: int, generator: torch.Generator) -> float:
        """Train the critic on the flow of what the actor paints."""
        clean = made.clean_BFCYX[rows].float()
        seen = self._seen(clean, generator)
        flow = self._flow(self._critic, made, rows, seen.noisy, seen.level_BF, made.text_BSE[rows])
        loss = (flow - (seen.noise - clean)).square().mean() * (len(rows) / count)
        loss.backward()
        return float(loss.detach())

    def _actor_part(
        self, made: Trajectories, rows: Tensor, number: int, weight_B: Tensor, generator: torch.Generator
    ) -> float:
        start = made.starts[number][rows]
        text = made.text_BSE[rows]
        level_BF = sampler.per_frame(self._noise.levels[number], start)
        mine = clean_estimate(start, level_BF, self._flow(self.actor, made, rows, start, level_BF, text))
        with torch.no_grad():
            seen = self._seen(mine, generator)
            flows = [
                self._flow(dit, made, rows, seen.noisy, seen.level_BF, told)
                for dit, told in (
                    (self._teacher, text),
                    (self._teacher, self._no_prompt_1SE.expand_as(text)),
                    (self._critic, text),
                )
            ]
            wanted = guided_flow(flows[0], flows[1], self._options.guidance)
            target = pulled(mine, seen, wanted, flows[2], unjudged=0)
        errors_B = 0.5 * (mine - target).square().mean(dim=(1, 2, 3, 4))
        loss = (errors_B * weight_B[rows]).sum() / weight_B.sum()
        loss.backward()
        return float(loss.detach())

    def _flow(
        self,
        dit: CausalDiT,
        made: Trajectories,
        rows: Tensor,
        noisy: Tensor,
        level_BF: Tensor,
        text_BSE: Tensor,
    ) -> Tensor:
        stream = torch.cat([made.past_BFCYX[rows], made.clean_BFCYX[rows]], dim=1).float()
        sequence = self._sequences.of(made.past_BFCYX.shape[1], noisy.shape[1])
        with in_precision(self._options.precision, self._device):
            return forced_flow(dit, stream, noisy, level_BF, sequence, dit.read_prompt(text_BSE))

    def _seen(self, clean: Tensor, generator: torch.Generator) -> Noised:
        """Return clean frames noised to the levels that pictures are judged at, one a chunk."""
        return noised(clean, self._config.frames_per_chunk, self._config.shift, generator, margin=MARGIN)


def reward_weights(reward_B: Tensor, known_B: Tensor, group: int, temperature: float) -> Tensor:
    """Return the weight of each row: exp(advantage / temperature) within its group, with a mean of 1 over the
    group's known rows."""
    advantage = group_relative(reward_B, known_B, group).view(-1, group) / temperature
    known = known_B.view(-1, group)
    share = advantage.masked_fill(~known, -torch.inf).softmax(dim=1).nan_to_num(0.0)
    return (share * known.sum(dim=1, keepdim=True)).flatten()
