"""What a policy learns from rewarded rollouts: GRPO, PPO, repeating the best of each group, or gradients of its pictures.

Densities are computed again from the recorded steps, over whole streams in one pass (`trainer/sequence.py`): through the past
too, whose keys and values are the policy's own, so ratios are exact. Four roles: the actor learns here, a copy of it rolls out
(`rollouts.py`), the critic is PPO's, the reference is what the actor was.
Shapes: B rows, L learnt steps of a chunk, K chunks, F frames, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor, nn
from torch.func import functional_call

from millstream.core.config import StreamConfig
from millstream.models import sampler
from millstream.models.dit import CausalDiT, CrossKV
from millstream.parallel.training.precision import Precision, in_precision
from millstream.trainer.policy.advantages import best_of_group, generalised, group_relative, standardised
from millstream.trainer.policy.clipped_adamw import ClippedAdamW, move_learning
from millstream.trainer.policy.control import DivergenceControl
from millstream.trainer.policy.critic import StreamCritic
from millstream.trainer.policy.objective import clipped_policy, importance
from millstream.trainer.policy.rollouts import Trajectories
from millstream.trainer.policy.steps import GaussianStep, StepNoise, divergence, log_density
from millstream.trainer.policy.whole_streams import StreamSequences
from millstream.trainer.sequence import forced_flow

Algorithm = Literal["grpo", "ppo", "best-of-n", "gradient", "matching"]
PictureWorth = Callable[[Trajectories, Tensor, Tensor], Tensor]
"""What finished chunks of these rows are worth [B], with gradients back to them."""


class LearnerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a recipe says of learning."""

    algorithm: Algorithm = "grpo"
    lr: float = 1e-5
    clip: float = 0.2
    """How far from 1 a ratio of densities may go."""
    epochs: int = 1
    minibatches: int = 2
    rows_at_once: int = 8
    """That gradients are computed for: memory, not learning."""
    weight_decay: float = 0.0
    most_norm: float = 1.0
    """Of gradients; larger ones are scaled down to it."""
    critic_lr: float = 1e-3
    critic_epochs: int = 4
    discount: float = 1.0
    trace: float = 0.95
    """The lambda of generalised advantage estimates."""
    temperature: float = 1.0
    """Of matching: the lower, the more the best of a group counts."""
    guidance: float = 2.5
    """Of matching: the teacher's."""
    precision: Precision = "fp32"
    """Of learning; rollouts are in float32 too, or in bfloat16."""
    asynchronous: bool = False
    """Rollouts are made while the step before is learnt from, so by weights that are one version older."""
    correction: float = 2.0
    """Of asynchronous rollouts: the most that a step counts for being likelier now than it was then; 0 corrects nothing."""


class PolicyLearner:
    def __init__(
        self,
        actor: CausalDiT,
        reference: CausalDiT,
        noise: StepNoise,
        config: StreamConfig,
        control: DivergenceControl,
        options: LearnerOptions,
        device: torch.device,
        worth: PictureWorth | None = None,
    ) -> None:
        """`worth` is what `gradient` follows instead of densities."""
        assert (worth is not None) == (options.algorithm == "gradient"), f"what is {options.algorithm} to follow?"
        self._worth = worth
        self.actor, self.reference = actor, reference.requires_grad_(requires_grad=False).eval()
        self.control, self._noise, self._config, self._options, self._device = control, noise, config, options, device
        self._optimiser = ClippedAdamW(
            actor.parameters(), lr=options.lr, weight_decay=options.weight_decay, most_norm=options.most_norm
        )
        self.critic: StreamCritic | None = None
        if options.algorithm == "ppo":
            self.critic = StreamCritic(
                channels=actor.config.channels, frames_per_chunk=config.frames_per_chunk, text_width=actor.config.text_width
            ).to(device)
            self._critic_optimiser = torch.optim.AdamW(self.critic.parameters(), lr=options.critic_lr, weight_decay=0.0)
        self._optimisers = [self._optimiser.inner, *([] if self.critic is None else [self._critic_optimiser])]
        self._sequences = StreamSequences(actor, config, device)
        theirs = dict(self.reference.named_parameters())  # which have no adapters: these go back to where they began
        self._home = [theirs[name] if name in theirs else each.detach().clone() for name, each in self._moving]
        self.version = 0
        """Times that the actor has changed."""

    @property
    def _moving(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, parameter) for name, parameter in self.actor.named_parameters() if parameter.requires_grad]

    def set_rate(self, lr: float) -> None:
        self._optimiser.set_rate(lr)

    def learn(self, made: Trajectories, reward_B: Tensor, known_B: Tensor, group: int) -> dict[str, float]:
        """One step from one batch of rollouts. Rows whose reward is not known are left out."""
        behind, most = self.version - made.version, 1 if self._options.asynchronous else 0
        assert 0 <= behind <= most, f"rollouts of version {made.version} for a policy of version {self.version}"
        if not known_B.any():
            return {}
        old_BLK, references, kl_B = self._before(made)
        found = {
            "kl": float(kl_B[known_B].mean()),
            "agreement": float((old_BLK - made.log_density_BLK).abs().max()),
            "kl_coefficient": self.control.coefficient,
            "behind": behind,
        }
        advantage_BLK, said = self._advantages(made, reward_B, known_B, group)
        if behind and self._options.correction:
            counts_BLK = importance(old_BLK, made.log_density_BLK, self._options.correction)
            advantage_BLK, found["counts"] = counts_BLK * advantage_BLK, float(counts_BLK[known_B].mean())
        if self.control.is_beyond(found["kl"]):
            advantage_BLK = torch.zeros_like(advantage_BLK)
        found |= said | self._update(made, references, old_BLK, advantage_BLK, known_B)
        found["kl_reached"] = self._reached(made, references, known_B)
        self._go_back(self.control.share(found["kl_reached"]))
        self.control.follow(found["kl_reached"])
        self.version += 1
        return found

    @torch.no_grad()
    def _reached(self, made: Trajectories, references: list[Tensor], known_B: Tensor) -> float:
        """How far the update has led, by some rows from all over the batch."""
        rows = torch.arange(len(made), device=self._device)[known_B]
        rows = rows[:: -(-len(rows) // self._options.rows_at_once)]
        return float(self._divergence(self.steps(self.actor, made, rows), [mean[rows] for mean in references]).mean())

    @torch.no_grad()
    def _go_back(self, share: float) -> None:
        """To this share of the way from the reference to where the actor is: a coefficient alone is too slow, since AdamW's
        steps are as long whatever it is, and what is random in them leads away too."""
        if share < 1:
            for (_, parameter), home in zip(self._moving, self._home, strict=True):
                parameter.lerp_(home.to(parameter.device), 1.0 - share)

    def steps(self, dit: CausalDiT, made: Trajectories, rows: Tensor) -> list[GaussianStep]:
        """Where a model's steps go, all of them, from where these rows' started."""
        starts = {number: start[rows] for number, start in enumerate(made.starts)}
        stream = torch.cat([made.past_BFCYX[rows], made.clean_BFCYX[rows]], dim=1).float()
        with in_precision(self._options.precision, self._device):
            cross = dit.read_prompt(made.text_BSE[rows])
        return self._steps(dit, stream, made.past_BFCYX.shape[1], starts, cross)

    def _steps(
        self, dit: Callable[..., Tensor], stream_BFCYX: Tensor, past: int, starts: dict[int, Tensor], cross: CrossKV
    ) -> list[GaussianStep]:
        """Of these numbers, from there, of the chunks that come after so many frames of the stream."""
        count = next(iter(starts.values())).shape[1]
        levels = [sampler.per_frame(self._noise.levels[number], start) for number, start in starts.items()]
        sequence, noisy = self._sequences.of(past, count, len(starts)), torch.cat(list(starts.values()), dim=1)
        with in_precision(self._options.precision, self._device):
            flow = forced_flow(dit, stream_BFCYX, noisy, torch.cat(levels, dim=1), sequence, cross)
        flows = flow.split(count, dim=1)
        return [self._noise.step(number, starts[number], flow) for number, flow in zip(starts, flows, strict=True)]

    def log_densities(self, made: Trajectories, steps: list[GaussianStep], rows: Tensor) -> Tensor:
        """[B, L, K]"""
        frames, learnt = self._config.frames_per_chunk, [steps[number] for number in self._noise.learnt]
        return torch.stack(
            [log_density(end[rows], step, frames=frames) for end, step in zip(made.ends, learnt, strict=True)], dim=1
        )

    def finished(self, made: Trajectories, steps: list[GaussianStep], rows: Tensor) -> Tensor:
        """The chunks as they were made, with gradients to all steps' means, through the steps and the chunks after them: noise
        that was drawn stays what it was. Weights learn by every step, or by those that were chosen alone."""
        frames, before = self._config.frames_per_chunk, made.past_BFCYX[rows].float()
        weights = {name: parameter.detach() for name, parameter in self.actor.named_parameters()}
        with torch.no_grad(), in_precision(self._options.precision, self._device):
            cross = self.actor.read_prompt(made.text_BSE[rows])

        def still(*told: object) -> Tensor:
            flow: Tensor = functional_call(self.actor, weights, told)
            return flow

        for first in range(0, made.clean_BFCYX.shape[1], frames):
            here = slice(first, first + frames)
            current, ends = made.starts[0][rows, here], [*made.starts[1:], made.clean_BFCYX]
            for number, step in enumerate(steps):
                mean = step.mean_BFCYX[:, here]
                mean = mean if number in (self._noise.only or range(len(steps))) else mean.detach()
                if current.requires_grad or before.requires_grad:
                    moved = self._steps(still, before, before.shape[1], {number: current}, cross)[0].mean_BFCYX
                    mean = mean + moved - moved.detach()
                current = ends[number][rows, here].float() + mean - mean.detach()
            before = torch.cat([before, current], dim=1)
        return before[:, made.past_BFCYX.shape[1] :]

    def move(self, device: torch.device) -> None:
        """To host memory while others need the device, or back."""
        move_learning([self.actor, self.reference, *([] if self.critic is None else [self.critic])], self._optimisers, device)

    def state(self) -> dict[str, Any]:
        """All that a run goes on from."""
        found: dict[str, Any] = {
            "actor": self.actor.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "coefficient": self.control.coefficient,
            "version": self.version,
        }
        if self.critic is not None:
            found |= {"critic": self.critic.state_dict(), "critic_optimiser": self._critic_optimiser.state_dict()}
        return found

    def take(self, state: dict[str, Any]) -> None:
        self.actor.load_state_dict(state["actor"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.control.coefficient, self.version = float(state["coefficient"]), int(state["version"])
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])
            self._critic_optimiser.load_state_dict(state["critic_optimiser"])

    @torch.no_grad()
    def _before(self, made: Trajectories) -> tuple[Tensor, list[Tensor], Tensor]:
        """Densities under the weights that sampled, the reference's means, and how far apart the two are [B]."""
        logs, means, apart = [], [], []
        for rows in torch.arange(len(made), device=self._device).split(self._options.rows_at_once):
            mine, theirs = self.steps(self.actor, made, rows), self.steps(self.reference, made, rows)
            logs.append(self.log_densities(made, mine, rows))
            means.append([step.mean_BFCYX for step in theirs])
            apart.append(self._divergence(mine, means[-1]).mean(dim=1))
        return torch.cat(logs), [torch.cat(parts) for parts in zip(*means, strict=True)], torch.cat(apart)

    def _divergence(self, mine: list[GaussianStep], theirs: list[Tensor]) -> Tensor:
        """Of all of a chunk's steps together, [B, K]: nobody learns from those that are not random, but they change too."""
        frames = self._config.frames_per_chunk
        return torch.stack(
            [
                divergence(step.mean_BFCYX, mean, self._noise.spread(number), frames=frames)
                for number, (step, mean) in enumerate(zip(mine, theirs, strict=True))
            ]
        ).sum(dim=0)

    def _advantages(self, made: Trajectories, reward_B: Tensor, known_B: Tensor, group: int) -> tuple[Tensor, dict[str, float]]:
        """[B, L, K], and what is worth saying of them. Gradients need none: every row counts."""
        shape = made.log_density_BLK.shape
        if self._options.algorithm == "gradient":
            return torch.ones_like(made.log_density_BLK), {}
        if self._options.algorithm != "ppo":
            by_group = best_of_group if self._options.algorithm == "best-of-n" else group_relative
            return by_group(reward_B, known_B, group)[:, None, None].expand(shape), {}
        with torch.no_grad():
            value_BT = self._values(made)
        reward_BT = torch.zeros_like(value_BT)
        reward_BT[:, -1] = reward_B
        options = self._options
        advantage_BT, return_BT = generalised(reward_BT, value_BT, discount=options.discount, trace=options.trace)
        error = self._teach_critic(made, return_BT, known_B)
        by_moment = standardised(advantage_BT, known_B)  # chunk after chunk, and in each step after step
        return by_moment.unflatten(1, (shape[2], shape[1])).transpose(1, 2), {"critic": error}

    def _values(self, made: Trajectories) -> Tensor:
        """What the critic expects before each step, [B, K * L] in the order in which they were taken."""
        assert self.critic is not None
        frames = self._config.frames_per_chunk
        stream, first = torch.cat([made.past_BFCYX, made.clean_BFCYX], dim=1).float(), made.past_BFCYX.shape[1] // frames
        values = []
        for chunk in range(made.clean_BFCYX.shape[1] // frames):
            here, end = slice(chunk * frames, (chunk + 1) * frames), (first + chunk) * frames
            before = stream[:, end - frames : end] if end else torch.zeros_like(made.starts[0][:, here])
            for number in self._noise.learnt:
                level, start = self._noise.levels[number], made.starts[number][:, here]
                values.append(self.critic(start, before, made.text_BSE, level, first + chunk))
        return torch.stack(values, dim=1)

    def _teach_critic(self, made: Trajectories, return_BT: Tensor, known_B: Tensor) -> float:
        """Its error before the first of its steps."""
        errors = list[float]()
        for _ in range(self._options.critic_epochs):
            loss = (self._values(made) - return_BT)[known_B].square().mean()
            self._critic_optimiser.zero_grad(set_to_none=True)
            loss.backward()
            self._critic_optimiser.step()
            errors.append(float(loss.detach()))
        return errors[0]

    def _update(
        self, made: Trajectories, references: list[Tensor], old_BLK: Tensor, advantage_BLK: Tensor, known_B: Tensor
    ) -> dict[str, float]:
        options, steps = self._options, list[dict[str, float]]()
        for _ in range(options.epochs):
            for first in range(options.minibatches):
                rows = torch.arange(first, len(made), options.minibatches, device=self._device)
                rows = rows[known_B[rows]]
                if len(rows):
                    steps.append(self._step(made, references, old_BLK, advantage_BLK, rows))
        last = {name: sum(step[name] for step in steps) / len(steps) for name in ("policy", "clipped", "norm")}
        return last | {"ratio_off": steps[0]["ratio_off"], "skipped": float(sum(step["skipped"] for step in steps))}

    def _step(
        self, made: Trajectories, references: list[Tensor], old_BLK: Tensor, advantage_BLK: Tensor, rows: Tensor
    ) -> dict[str, float]:
        """One update by these rows, some at a time. `ratio_off` is the furthest that a density was from the old one."""
        weight = 1.0 / (len(rows) * old_BLK[0].numel())
        found = {"policy": 0.0, "clipped": 0.0, "ratio_off": 0.0}
        for part in rows.split(self._options.rows_at_once):
            steps = self.steps(self.actor, made, part)
            new_BLK = self.log_densities(made, steps, part)
            weight_BLK = torch.full_like(new_BLK, weight)
            policy = clipped_policy(new_BLK, old_BLK[part], advantage_BLK[part], weight_BLK, self._options.clip)
            held = self._divergence(steps, [mean[part] for mean in references]).sum() / (len(rows) * old_BLK.shape[2])
            loss = policy.loss
            if self._worth is not None:
                worth_B = self._worth(made, self.finished(made, steps, part), part)
                loss = -(worth_B * advantage_BLK[part].mean(dim=(1, 2))).sum() / len(rows)
            (loss + self.control.coefficient * held).backward()
            off = float((new_BLK.detach() - old_BLK[part]).exp().sub(1).abs().max())
            found["ratio_off"] = max(found["ratio_off"], off)
            found["policy"] += float(loss.detach())
            found["clipped"] += float(policy.clipped)
        norm = self._optimiser.step()
        followed = math.isfinite(norm)
        return found | {"norm": norm if followed else 0.0, "skipped": float(not followed)}
