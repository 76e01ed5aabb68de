"""Run of tuning by reward on one device: roll out, reward, learn; evaluate, save; stop where reward and judge
part."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from millstream.core.config import ModelSpec
from millstream.core.errors import RewardFailed
from millstream.core.files import Staging
from millstream.models.adapters import add_adapters
from millstream.models.dit import CausalDiT
from millstream.models.registry import load_dit, load_model
from millstream.parallel.collectives import RankGroup
from millstream.train.checkpoint import read_checkpoint
from millstream.train.evaluate.classifier import load_classifier
from millstream.train.optimise import Average, learning_rate
from millstream.train.reward.rewards import make_rewards
from millstream.train.rl.batches import Batches, BatchMaker, Phase, timed
from millstream.train.rl.control import Evaluated, best_by_judge, have_parted
from millstream.train.rl.evaluation import Evaluation
from millstream.train.rl.recipe import PolicyRecipe
from millstream.train.rl.remote_rollouts import HOST, RemoteBatches
from millstream.train.rl.rollouts import RolloutEngine
from millstream.train.run import TrainingRun

CURVE = "curve.jsonl"
EVALUATIONS = "evaluations.jsonl"
LAST = "last.pt"
BEST = "best.pt"
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyReport:
    """Report of one step: what was learnt, the rewards, and where the time went."""

    step: int
    total: int
    numbers: dict[str, float]
    said: list[str]
    """Messages about rewards that failed."""
    phases: list[Phase]
    """Phases of the step and their times; rollouts of asynchronous runs are made while the step before is
    learnt from."""


ShowEvaluation = Callable[[int, Evaluation, list[Evaluated]], None]
"""Function that is given the number of steps done, this evaluation, and the results so far."""


def make_actor(recipe: PolicyRecipe, spec: ModelSpec, device: torch.device) -> CausalDiT:
    """Load the model that learns, with adapters if only these learn; the same on every rank."""
    actor = load_dit(spec, recipe.weights, device=device, dtype=torch.float32).train()
    torch.manual_seed(recipe.seed)  # of adapters and of a critic
    if recipe.lora is not None:
        add_adapters(actor, rank=recipe.lora.rank, alpha=recipe.lora.alpha, parts=recipe.lora.parts)
    else:
        actor.requires_grad_(requires_grad=True)
    return actor


def make_batches(
    recipe: PolicyRecipe,
    spec: ModelSpec,
    actor: CausalDiT,
    recipe_folder: Path,
    device: torch.device,
    *,
    threaded: bool,
) -> BatchMaker:
    """Make the side that streams, with its own copy of the actor's current weights."""
    config = recipe.stream(spec)
    dtype = recipe.rolls_in
    model = load_model(spec, recipe.weights, device=device, dtype=dtype)
    model.vae.requires_grad_(requires_grad=False)  # gradients pass through it at most
    is_fast = device.type == "cuda" and dtype is torch.bfloat16 and recipe.lora is None
    engine = RolloutEngine(actor, model, config, recipe.noise(spec), dtype, is_fast=is_fast)
    per_chunk = config.frames_per_chunk
    patience = recipe.reward_patience
    rewards = make_rewards(
        recipe.rewards, recipe_folder, device, frames_per_chunk=per_chunk, patience=patience
    )
    path = recipe.judge_path(recipe_folder)
    judge = None if path is None else load_classifier(path, device)
    return BatchMaker(recipe, engine, rewards, judge, threaded=threaded)


class PolicyRun(TrainingRun[PolicyReport]):
    first_line: ClassVar[int] = 1

    def __init__(
        self,
        recipe: PolicyRecipe,
        spec: ModelSpec,
        folder: Path,
        recipe_folder: Path,
        device: torch.device,
        world: RankGroup | None = None,
    ) -> None:
        """With a `world`, its other rank streams (`remote_rollouts.obey`)."""
        recipe.check(spec, recipe_folder)
        self.recipe = recipe
        self.spec = spec
        self.folder = folder
        self.device = device
        self.steps = recipe.steps
        self.checkpoint_every = recipe.checkpoint_every
        self.curve = folder / CURVE
        self.config = recipe.stream(spec)
        noise = recipe.noise(spec)
        actor = make_actor(recipe, spec, device)
        self.batches: Batches
        if world is None:
            self.batches = make_batches(
                recipe, spec, actor, recipe_folder, device, threaded=recipe.asynchronous
            )
        else:
            self.batches = RemoteBatches(world, recipe.rolls_in, device)

        def load(role: Literal["reference", "teacher"]) -> CausalDiT:
            weights = getattr(recipe, role) or recipe.weights
            return load_dit(spec, weights, device=device, dtype=torch.float32)

        streams = self.batches if isinstance(self.batches, BatchMaker) else None
        self.learner = recipe.learner.create(actor, load, streams, noise, self.config, recipe, device)
        self._average = Average(actor, recipe.ema) if recipe.ema else None
        self.evaluated = list[Evaluated]()
        self._ahead = False
        """True while the next step's batch is under way."""
        self.has_parted = False
        """True if the run ended because reward and judge parted."""

    @property
    def engine(self) -> RolloutEngine:
        """Rollout engine of a run that streams itself."""
        assert isinstance(self.batches, BatchMaker), "another rank streams"
        return self.batches.engine

    @property
    def actor(self) -> CausalDiT:
        return self.learner.actor

    @property
    def _shown(self) -> CausalDiT:
        """Model that is evaluated and exported: the average of the actor, if there is one."""
        if self._average is None:
            return self.actor
        assert isinstance(self._average.module, CausalDiT)
        return self._average.module

    def train(
        self,
        report: Callable[[PolicyReport], None],
        stop: Callable[[], bool],
        show: ShowEvaluation = lambda step, found, so_far: None,
    ) -> bool:
        """Train to the end, going on from the last checkpoint, or until `stop`, with a checkpoint there;
        return whether it is the end."""
        self._show_evaluation = show
        try:
            return self.run(report, stop)
        finally:
            if self._ahead:  # it will not be learnt from
                self.batches.collect()
                self._ahead = False

    def begin(self, step: int, kept: list[dict[str, Any]]) -> AbstractContextManager[object]:
        self._make_room()
        if not self.evaluated:
            self._evaluate(step)
        return nullcontext()

    def take_step(self, step: int) -> int:
        with self._saved_where_rewards_fail(step):
            self._report = self._step(step)
        return step + 1

    def report(self, step: int) -> tuple[PolicyReport, dict[str, Any]]:
        return self._report, {"step": step, **_plain(self._report.numbers), "phases": self._report.phases}

    def evaluate(self, step: int) -> None:
        if self._is_evaluated(step):
            with self._saved_where_rewards_fail(step):
                self._evaluate(step)

    @property
    def is_over(self) -> bool:
        return self.has_parted

    @contextmanager
    def _saved_where_rewards_fail(self, step: int) -> Iterator[None]:
        """Save a checkpoint if a reward fails inside this context, and raise its error."""
        try:
            yield
        except RewardFailed:
            self.save(step)
            raise

    def close(self) -> None:
        """Stop the side that streams."""
        self.batches.close()

    def learnt(self) -> dict[str, Tensor]:
        """Return the weights to export: those that the judge liked best, or the last ones without a judge."""
        best = self.folder / CHECKPOINTS / BEST
        if self.recipe.judge and best.exists():
            learnt: dict[str, Tensor] = read_checkpoint(best)["learnt"]
            return learnt
        return self._learnt_now()

    def _step(self, step: int) -> PolicyReport:
        begun = time.time()
        phases = list[Phase]()
        self.learner.set_rate(learning_rate(self.recipe, step))
        if not self._ahead:
            phases.append(self.batches.load_weights(self.actor, self.learner.version))
            self.batches.begin(step)
        batch = self.batches.collect()
        self._ahead = False
        if self.recipe.asynchronous and not self._is_a_break(step + 1):
            phases.append(self.batches.load_weights(self.actor, self.learner.version))
            self.batches.begin(step + 1)
            self._ahead = True
        scored = batch.scored
        with timed("learn", phases, self.device):
            self._fetch()
            learnt = self.learner.learn(batch.made, scored.total_B, scored.known_B, batch.group)
            if self._average is not None:
                self._average.update(self.actor, step)
            self._make_room()
        known = int(scored.known_B.sum())
        phases = sorted([*batch.phases, *phases], key=lambda phase: phase.begun)
        numbers = {
            "reward": float(scored.total_B[scored.known_B].mean()) if known else math.nan,
            **{f"reward {name}": value for name, value in scored.terms.items()},
            **{f"cost {name}_s": cost for name, cost in batch.costs.items()},
            **learnt,
            "left_out": len(batch.made) - known,
            "fork_at": batch.fork_at,
            "version": self.learner.version,
            **{f"{phase.name}_s": phase.ended - phase.begun for phase in phases},
            "step_s": time.time() - begun,
        }
        return PolicyReport(
            step=step, total=self.recipe.steps, numbers=numbers, said=scored.said, phases=phases
        )

    def _is_evaluated(self, step: int) -> bool:
        return step % self.recipe.evaluate_every == 0 or step == self.recipe.steps

    def _is_a_break(self, step: int) -> bool:
        """Return whether no batch is begun ahead for a step: a checkpoint before it must hold all that it
        depends on."""
        return self._is_evaluated(step) or step % self.recipe.checkpoint_every == 0

    def _make_room(self) -> None:
        """Move what learns to host memory, if the device is shared by turns."""
        self._move(HOST)

    def _fetch(self) -> None:
        self._move(self.device)

    def _move(self, device: torch.device) -> None:
        if self.recipe.placement == "hybrid":
            self.learner.move(device)
            if self._average is not None:
                self._average.module.to(device)

    def _evaluate(self, step: int) -> None:
        self.batches.load_weights(self._shown, self.learner.version)
        found = self.batches.evaluate()
        self.evaluated.append(Evaluated(step, found.reward, found.judge))
        line = {"step": step, "reward": found.reward, "flicker": found.flicker}
        if self.recipe.judge:
            line["judge"] = found.judge
        parts = {f"reward {name}": each for name, each in found.terms.items()} | {
            f"judge {name}": each for name, each in found.attributes.items()
        }
        with (self.folder / EVALUATIONS).open("a") as file:
            file.write(json.dumps(_plain(line | parts)) + "\n")
        if self.recipe.judge:
            if best_by_judge(self.evaluated).step == step:
                self._write(BEST, {"step": step, "learnt": self._learnt_now()})
            recipe = self.recipe
            self.has_parted = have_parted(
                self.evaluated, tolerance=recipe.part_tolerance, patience=recipe.part_patience
            )
        self._show_evaluation(step, found, self.evaluated)

    def _learnt_now(self) -> dict[str, Tensor]:
        if self.recipe.lora is None:
            return {name: tensor.detach().cpu().clone() for name, tensor in self._shown.state_dict().items()}
        shown = dict(self._shown.named_parameters())
        learns = [name for name, each in self.actor.named_parameters() if each.requires_grad]
        return {name: shown[name].detach().cpu().clone() for name in learns}

    def save(self, step: int) -> None:
        evaluated = [tuple(each) for each in self.evaluated]
        state = {"step": step, "evaluated": evaluated, "parted": self.has_parted}
        average = {} if self._average is None else {"average": self._average.module.state_dict()}
        self._write(LAST, state | average | {"learner": self.learner.state()})

    def load(self) -> int:
        """Load the last checkpoint; return the number of steps done."""
        path = self.folder / CHECKPOINTS / LAST
        if not path.exists():
            return 0
        state = read_checkpoint(path)
        self.learner.load_state(state["learner"])
        if self._average is not None:
            self._average.module.load_state_dict(state["average"])
        self.evaluated = [Evaluated(*each) for each in state["evaluated"]]
        self.has_parted = bool(state["parted"])
        return int(state["step"])

    def _write(self, name: str, state: dict[str, Any]) -> None:
        with Staging(self.folder / CHECKPOINTS) as staging:
            torch.save(state, staging.path(name))


def _plain(numbers: dict[str, float]) -> dict[str, float | None]:
    """Return numbers as JSON can hold them: null for one that is not finite."""
    return {name: round(value, 6) if math.isfinite(value) else None for name, value in numbers.items()}
