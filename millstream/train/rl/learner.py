"""Base of all algorithms of tuning by reward: an actor with its optimiser, and the reference that most hold
it to.

Knows no algorithm (`algorithms.py`, `matching.py`). Densities are computed again from the recorded steps,
over whole streams in one pass (`train/sequence.py`): through the past too, whose keys and values are the
policy's own, so ratios are exact.
Shapes: B rows, L learnt steps of a chunk, K chunks, F frames, C latent channels, Y and X latent rows and
columns.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from millstream.core.config import StreamConfig
from millstream.models import sampler
from millstream.models.dit import CausalDiT, CrossKV
from millstream.train.parallel.precision import Precision, in_precision
from millstream.train.recipe import TrainRecipe
from millstream.train.rl.clipped_adamw import ClippedAdamW, move_learning
from millstream.train.rl.control import DivergenceControl
from millstream.train.rl.objective import ClippedPolicy, clipped_policy, importance
from millstream.train.rl.rollouts import Trajectories
from millstream.train.rl.steps import GaussianStep, StepNoise, divergence, log_density
from millstream.train.rl.whole_streams import StreamSequences
from millstream.train.sequence import forced_flow

Algorithm = Literal["grpo", "ppo", "best-of-n", "gradient", "matching"]


class LearnerOptions(TrainRecipe, frozen=True, kw_only=True):
    """Part of a recipe that is about learning."""

    RENAMED: ClassVar[dict[str, str]] = {"clip": "ppo_clip", "most_norm": "grad_clip", "average": "ema"}

    algorithm: Algorithm = "grpo"
    lr: float = 1e-5
    schedule: Literal["cosine", "constant"] = "constant"
    warm_up: int = 5
    weight_decay: float = 0.0
    checkpoint_every: int = 10
    ppo_clip: float = 0.2
    """How far from 1 a ratio of densities may go: PPO's clip, and GRPO's."""
    epochs: int = 1
    minibatches: int = 2
    rows_at_once: int = 8
    """Rows that gradients are computed for at a time: changes memory, not learning."""
    critic_lr: float = 1e-3
    critic_epochs: int = 4
    discount: float = 1.0
    trace: float = 0.95
    """The lambda of generalised advantage estimates."""
    kl_coefficient: float = 0.01
    kl_target: float = 5.0
    """Target divergence that the coefficient follows, in nats a chunk; a target of 0 and a coefficient of 0
    hold the model to nothing."""
    kl_bound: float = 50.0
    temperature: float = 1.0
    """Temperature of `matching`: the lower, the more the best of a group counts."""
    guidance: float = 2.5
    """Guidance of `matching`'s teacher."""
    precision: Precision = "fp32"
    """Precision of learning; rollouts are in float32 too, or in bfloat16."""
    asynchronous: bool = False
    """Make rollouts while the step before is learnt from, so by weights that are one version older."""
    correction: float = 2.0
    """Largest weight of a step of asynchronous rollouts, which counts by how much likelier it is now than
    when it was sampled; 0 corrects nothing."""

    @property
    def control(self) -> DivergenceControl:
        return DivergenceControl(coefficient=self.kl_coefficient, target=self.kl_target, bound=self.kl_bound)


class StreamSide(Protocol):
    """Side of a run that streams, as needed by algorithms that do not learn from densities."""

    def worth(self, made: Trajectories, clean_BFCYX: Tensor, rows: Tensor) -> Tensor:
        """Return what finished chunks of these rows are worth [B], with gradients back to them."""

    def read(self, prompts: Sequence[str]) -> Tensor:
        """Encode prompts [B, S, E]."""


Load = Callable[[Literal["reference", "teacher"]], CausalDiT]
"""Function that loads the DiT of a role."""


class PolicyLearner(ABC):
    """Actor that learns from rewarded rollouts. One subclass an algorithm."""

    least_group: ClassVar[int] = 2
    """Smallest group that the algorithm needs, in streams of a prompt, to compare them."""
    needs_teacher: ClassVar[bool] = False
    takes_older: ClassVar[bool] = True
    """True if it can learn from rollouts of older weights, and from those of another rank."""
    follows_pixels: ClassVar[bool] = False
    """True if it follows the rewards' own gradients, which a reward must then have."""
    has_critic: ClassVar[bool] = False
    """True if a critic predicts what streams will be worth."""

    def __init__(
        self,
        actor: CausalDiT,
        noise: StepNoise,
        config: StreamConfig,
        options: LearnerOptions,
        device: torch.device,
    ) -> None:
        self.actor = actor
        self._noise = noise
        self._config = config
        self._options = options
        self._device = device
        self._optimiser = ClippedAdamW(
            actor.parameters(), lr=options.lr, weight_decay=options.weight_decay, grad_clip=options.grad_clip
        )
        self._sequences = StreamSequences(actor, config, device)
        self.version = 0
        """Number of times that the actor has changed."""

    @classmethod
    @abstractmethod
    def create(
        cls,
        actor: CausalDiT,
        load: Load,
        streams: StreamSide | None,
        noise: StepNoise,
        config: StreamConfig,
        options: LearnerOptions,
        device: torch.device,
    ) -> PolicyLearner:
        """Load the other roles. Without `streams`, another rank streams."""

    @abstractmethod
    def learn(self, made: Trajectories, reward_B: Tensor, known_B: Tensor, group: int) -> dict[str, float]:
        """Take one step from one batch of rollouts. Rows whose reward is not known are left out."""

    @property
    @abstractmethod
    def _held(self) -> list[tuple[nn.Module, torch.optim.Optimizer | None]]:
        """Modules beside the actor, each with its optimiser if it learns."""

    def set_rate(self, lr: float) -> None:
        self._optimiser.set_rate(lr)

    def move(self, device: torch.device) -> None:
        """Move modules and optimiser state to host memory while others need the device, or back."""
        held = [(self.actor, self._optimiser.inner), *self._held]
        move_learning([module for module, _ in held], [each for _, each in held if each is not None], device)

    def state(self) -> dict[str, Any]:
        """Return all that a run goes on from."""
        return {
            "actor": self.actor.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "version": self.version,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.actor.load_state_dict(state["actor"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.version = int(state["version"])


class ReferenceLearner(PolicyLearner):
    """Actor that follows advantages of its steps and is held to a reference by their divergence.

    An algorithm defines how much better than expected steps were (`_advantages`) and may replace the loss
    (`_loss`).
    """

    def __init__(
        self,
        actor: CausalDiT,
        reference: CausalDiT,
        noise: StepNoise,
        config: StreamConfig,
        options: LearnerOptions,
        device: torch.device,
    ) -> None:
        super().__init__(actor, noise, config, options, device)
        self.reference = reference.requires_grad_(requires_grad=False).eval()
        self.control = options.control
        theirs = dict(
            self.reference.named_parameters()
        )  # which have no adapters: these go back to where they began
        self._home = [
            theirs[name] if name in theirs else each.detach().clone() for name, each in self._moving
        ]

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
    ) -> ReferenceLearner:
        return cls(actor, load("reference"), noise, config, options, device)

    @abstractmethod
    def _advantages(
        self, made: Trajectories, reward_B: Tensor, known_B: Tensor, group: int
    ) -> tuple[Tensor, dict[str, float]]:
        """Return how much better than expected each step was [B, L, K], and numbers for the curve."""

    def _loss(
        self,
        made: Trajectories,
        steps: list[GaussianStep],
        policy: ClippedPolicy,
        advantage_BLK: Tensor,
        rows: Tensor,
        count: int,
    ) -> Tensor:
        """Return the loss of these rows, some of `count`, without the divergence."""
        return policy.loss

    @property
    def _moving(self) -> list[tuple[str, nn.Parameter]]:
        return [
            (name, parameter) for name, parameter in self.actor.named_parameters() if parameter.requires_grad
        ]

    def learn(self, made: Trajectories, reward_B: Tensor, known_B: Tensor, group: int) -> dict[str, float]:
        behind = self.version - made.version
        most = 1 if self._options.asynchronous else 0
        assert 0 <= behind <= most, (
            f"rollouts of version {made.version} for a policy of version {self.version}"
        )
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
        self.control.adjust(found["kl_reached"])
        self.version += 1
        return found

    @torch.no_grad()
    def _reached(self, made: Trajectories, references: list[Tensor], known_B: Tensor) -> float:
        """Return the divergence after the update, measured on some rows from all over the batch."""
        rows = torch.arange(len(made), device=self._device)[known_B]
        rows = rows[:: -(-len(rows) // self._options.rows_at_once)]
        return float(
            self._divergence(self.steps(self.actor, made, rows), [mean[rows] for mean in references]).mean()
        )

    @torch.no_grad()
    def _go_back(self, share: float) -> None:
        """Move the actor back to this share of its way from the reference. A coefficient alone is too slow,
        since AdamW's steps have the same length whatever it is, and their random part leads away too."""
        if share < 1:
            for (_, parameter), home in zip(self._moving, self._home, strict=True):
                parameter.lerp_(home.to(parameter.device), 1.0 - share)

    def steps(self, dit: CausalDiT, made: Trajectories, rows: Tensor) -> list[GaussianStep]:
        """Return where all of a model's steps go, from where these rows' steps started."""
        starts = {number: start[rows] for number, start in enumerate(made.starts)}
        stream = torch.cat([made.past_BFCYX[rows], made.clean_BFCYX[rows]], dim=1).float()
        with in_precision(self._options.precision, self._device):
            cross = dit.read_prompt(made.text_BSE[rows])
        return self._steps(dit, stream, made.past_BFCYX.shape[1], starts, cross)

    def _steps(
        self,
        dit: Callable[..., Tensor],
        stream_BFCYX: Tensor,
        past: int,
        starts: dict[int, Tensor],
        cross: CrossKV,
    ) -> list[GaussianStep]:
        """Return the steps of these numbers, from these starts, of the chunks that come after `past` frames
        of the stream."""
        count = next(iter(starts.values())).shape[1]
        levels = [sampler.per_frame(self._noise.levels[number], start) for number, start in starts.items()]
        sequence = self._sequences.of(past, count, len(starts))
        noisy = torch.cat(list(starts.values()), dim=1)
        with in_precision(self._options.precision, self._device):
            flow = forced_flow(dit, stream_BFCYX, noisy, torch.cat(levels, dim=1), sequence, cross)
        flows = flow.split(count, dim=1)
        return [
            self._noise.step(number, starts[number], flow) for number, flow in zip(starts, flows, strict=True)
        ]

    def log_densities(self, made: Trajectories, steps: list[GaussianStep], rows: Tensor) -> Tensor:
        """Return the log-densities of the learnt steps, [B, L, K]."""
        frames = self._config.frames_per_chunk
        learnt = [steps[number] for number in self._noise.learnt]
        return torch.stack(
            [
                log_density(end[rows], step, frames=frames)
                for end, step in zip(made.ends, learnt, strict=True)
            ],
            dim=1,
        )

    @property
    def _held(self) -> list[tuple[nn.Module, torch.optim.Optimizer | None]]:
        return [(self.reference, None)]

    def state(self) -> dict[str, Any]:
        return super().state() | {"coefficient": self.control.coefficient}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.control.coefficient = float(state["coefficient"])

    @torch.no_grad()
    def _before(self, made: Trajectories) -> tuple[Tensor, list[Tensor], Tensor]:
        """Return log-densities under the weights that sampled, the reference's means, and the divergence of
        the two [B]."""
        logs = []
        means = []
        apart = []
        for rows in torch.arange(len(made), device=self._device).split(self._options.rows_at_once):
            mine = self.steps(self.actor, made, rows)
            theirs = self.steps(self.reference, made, rows)
            logs.append(self.log_densities(made, mine, rows))
            means.append([step.mean_BFCYX for step in theirs])
            apart.append(self._divergence(mine, means[-1]).mean(dim=1))
        return torch.cat(logs), [torch.cat(parts) for parts in zip(*means, strict=True)], torch.cat(apart)

    def _divergence(self, mine: list[GaussianStep], theirs: list[Tensor]) -> Tensor:
        """Return the divergence of all of a chunk's steps together, [B, K]. Steps that are not random are not
        learnt from but are included, since they change too."""
        frames = self._config.frames_per_chunk
        return torch.stack(
            [
                divergence(step.mean_BFCYX, mean, self._noise.spread(number), frames=frames)
                for number, (step, mean) in enumerate(zip(mine, theirs, strict=True))
            ]
        ).sum(dim=0)

    def _update(
        self,
        made: Trajectories,
        references: list[Tensor],
        old_BLK: Tensor,
        advantage_BLK: Tensor,
        known_B: Tensor,
    ) -> dict[str, float]:
        options = self._options
        steps = list[dict[str, float]]()
        for _ in range(options.epochs):
            for first in range(options.minibatches):
                rows = torch.arange(first, len(made), options.minibatches, device=self._device)
                rows = rows[known_B[rows]]
                if len(rows):
                    steps.append(self._step(made, references, old_BLK, advantage_BLK, rows))
        last = {
            name: sum(step[name] for step in steps) / len(steps) for name in ("policy", "clipped", "norm")
        }
        return last | {
            "ratio_off": steps[0]["ratio_off"],
            "skipped": float(sum(step["skipped"] for step in steps)),
        }

    def _step(
        self,
        made: Trajectories,
        references: list[Tensor],
        old_BLK: Tensor,
        advantage_BLK: Tensor,
        rows: Tensor,
    ) -> dict[str, float]:
        """Take one update by these rows, some at a time. `ratio_off` is the furthest that a density ratio was
        from 1."""
        weight = 1.0 / (len(rows) * old_BLK[0].numel())
        found = {"policy": 0.0, "clipped": 0.0, "ratio_off": 0.0}
        for part in rows.split(self._options.rows_at_once):
            steps = self.steps(self.actor, made, part)
            new_BLK = self.log_densities(made, steps, part)
            weight_BLK = torch.full_like(new_BLK, weight)
            policy = clipped_policy(
                new_BLK, old_BLK[part], advantage_BLK[part], weight_BLK, self._options.ppo_clip
            )
            held = self._divergence(steps, [mean[part] for mean in references]).sum() / (
                len(rows) * old_BLK.shape[2]
            )
            loss = self._loss(made, steps, policy, advantage_BLK[part], part, len(rows))
            (loss + self.control.coefficient * held).backward()
            off = float((new_BLK.detach() - old_BLK[part]).exp().sub(1).abs().max())
            found["ratio_off"] = max(found["ratio_off"], off)
            found["policy"] += float(loss.detach())
            found["clipped"] += float(policy.clipped)
        norm = self._optimiser.step()
        followed = math.isfinite(norm)
        return found | {"norm": norm if followed else 0.0, "skipped": float(not followed)}
