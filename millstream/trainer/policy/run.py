"""A run of tuning by reward on one device: roll out, reward, learn; evaluate, save; stop where reward and judge part."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from millstream.core.config import ModelSpec
from millstream.core.errors import RewardFailed
from millstream.core.files import Staging
from millstream.models.adapters import add_adapters
from millstream.models.dit import CausalDiT
from millstream.models.registry import load_dit, load_model
from millstream.parallel.collectives import RankGroup
from millstream.trainer.checkpoint import read_checkpoint
from millstream.trainer.curve import cut_curve
from millstream.trainer.evaluate.classifier import load_classifier
from millstream.trainer.optimise import Average, learning_rate
from millstream.trainer.policy.apart import HOST, RemoteBatches
from millstream.trainer.policy.batches import Batches, BatchMaker, Phase, timed
from millstream.trainer.policy.control import Evaluated, best_by_judge, have_parted
from millstream.trainer.policy.evaluation import Evaluation
from millstream.trainer.policy.learner import PolicyLearner
from millstream.trainer.policy.matching import MatchingLearner
from millstream.trainer.policy.recipe import PolicyRecipe
from millstream.trainer.policy.rollouts import RolloutEngine
from millstream.trainer.reward.rewards import make_rewards

CURVE, EVALUATIONS, LAST, BEST = "curve.jsonl", "evaluations.jsonl", "last.pt", "best.pt"
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyReport:
    """One step: what was learnt, what rewards were, and where the time went."""

    step: int
    total: int
    numbers: dict[str, float]
    said: list[str]
    """Lines about rewards that misbehaved."""
    phases: list[Phase]
    """What was done when; rollouts of asynchronous runs while the step before was learnt from."""


ShowEvaluation = Callable[[int, Evaluation, list[Evaluated]], None]
"""Told the steps that are done, what was found, and all that was found so far."""


def make_actor(recipe: PolicyRecipe, spec: ModelSpec, device: torch.device) -> CausalDiT:
    """What learns, with adapters if these are what does; the same on every rank."""
    actor = load_dit(spec, recipe.weights, device=device, dtype=torch.float32).train()
    torch.manual_seed(recipe.seed)  # of adapters and of a critic
    if recipe.lora is not None:
        add_adapters(actor, rank=recipe.lora.rank, alpha=recipe.lora.alpha, parts=recipe.lora.parts)
    else:
        actor.requires_grad_(requires_grad=True)
    return actor


def make_batches(
    recipe: PolicyRecipe, spec: ModelSpec, actor: CausalDiT, recipe_folder: Path, device: torch.device, *, threaded: bool
) -> BatchMaker:
    """The side that streams, with weights of its own, as the actor's are now."""
    config, dtype = recipe.stream(spec), recipe.rolls_in
    model = load_model(spec, recipe.weights, device=device, dtype=dtype)
    model.vae.requires_grad_(requires_grad=False)  # gradients pass through it at most
    is_fast = device.type == "cuda" and dtype is torch.bfloat16 and recipe.lora is None
    engine = RolloutEngine(actor, model, config, recipe.noise(spec), dtype, is_fast=is_fast)
    per_chunk, patience = config.frames_per_chunk, recipe.reward_patience
    rewards = make_rewards(recipe.rewards, recipe_folder, device, frames_per_chunk=per_chunk, patience=patience)
    path = recipe.judge_path(recipe_folder)
    judge = None if path is None else load_classifier(path, device)
    return BatchMaker(recipe, engine, rewards, judge, threaded=threaded)


class PolicyRun:
    def __init__(
        self,
        recipe: PolicyRecipe,
        spec: ModelSpec,
        folder: Path,
        recipe_folder: Path,
        device: torch.device,
        world: RankGroup | None = None,
    ) -> None:
        """With a `world`, its other rank streams (`apart.obey`)."""
        recipe.check(spec, recipe_folder)
        self.recipe, self.spec, self.folder, self.device = recipe, spec, folder, device
        self.config, noise = recipe.stream(spec), recipe.noise(spec)
        actor = make_actor(recipe, spec, device)
        self.batches: Batches
        if world is None:
            self.batches = make_batches(recipe, spec, actor, recipe_folder, device, threaded=recipe.asynchronous)
        else:
            self.batches = RemoteBatches(world, recipe.rolls_in, device)
        self.learner: PolicyLearner | MatchingLearner
        if recipe.algorithm == "matching":
            teacher = load_dit(spec, recipe.teacher, device=device, dtype=torch.float32)
            self.learner = MatchingLearner(actor, teacher, self.engine.read(("",)), noise, self.config, recipe, device)
        else:
            reference = load_dit(spec, recipe.reference or recipe.weights, device=device, dtype=torch.float32)
            worth = self.batches.worth if recipe.algorithm == "gradient" and isinstance(self.batches, BatchMaker) else None
            self.learner = PolicyLearner(actor, reference, noise, self.config, recipe.control, recipe, device, worth)
        self._average = Average(actor, recipe.average) if recipe.average else None
        self.evaluated = list[Evaluated]()
        self._ahead = False
        """Whether the next step's batch was begun."""
        self.has_parted = False
        """Whether it ended because reward and judge went different ways."""

    @property
    def engine(self) -> RolloutEngine:
        """Of a run that streams itself."""
        assert isinstance(self.batches, BatchMaker), "another rank streams"
        return self.batches.engine

    @property
    def actor(self) -> CausalDiT:
        return self.learner.actor

    @property
    def _shown(self) -> CausalDiT:
        """What is evaluated and exported: the average of what was learnt, if there is one."""
        if self._average is None:
            return self.actor
        assert isinstance(self._average.module, CausalDiT)
        return self._average.module

    def train(
        self,
        report: Callable[[PolicyReport], None],
        stop: Callable[[], bool],
        show: ShowEvaluation = lambda step, found, all_found: None,
    ) -> bool:
        """To the end, going on from the last checkpoint; or until `stop`, saved there. Whether it is the end."""
        try:
            return self._train(report, stop, show)
        finally:
            if self._ahead:  # nobody will learn from it
                self.batches.take()
                self._ahead = False

    def _train(self, report: Callable[[PolicyReport], None], stop: Callable[[], bool], show: ShowEvaluation) -> bool:
        step = self._load()
        self._make_room()
        cut_curve(self.folder / CURVE, lambda made: made <= step)
        if not self.evaluated:
            self._evaluate(step, show)
        with (self.folder / CURVE).open("a") as curve:
            while step < self.recipe.steps and not self.has_parted:
                try:
                    said = self._step(step)
                    step += 1
                    line = {"step": step, **_plain(said.numbers), "phases": said.phases}
                    curve.write(json.dumps(line) + "\n")
                    curve.flush()
                    report(said)
                    if self._is_evaluated(step):
                        self._evaluate(step, show)
                except RewardFailed:
                    self._save(step)  # what was learnt before it is whole
                    raise
                must_stop, is_last = stop(), step == self.recipe.steps or self.has_parted
                if must_stop or is_last or step % self.recipe.checkpoint_every == 0:
                    self._save(step)
                if must_stop and not is_last:
                    return False
        return True

    def close(self) -> None:
        """Whoever streams may go."""
        self.batches.close()

    def learnt(self) -> dict[str, Tensor]:
        """What is exported: the weights that the judge liked best, or the last ones without a judge."""
        best = self.folder / CHECKPOINTS / BEST
        if self.recipe.judge and best.exists():
            learnt: dict[str, Tensor] = read_checkpoint(best)["learnt"]
            return learnt
        return self._learnt_now()

    def _step(self, step: int) -> PolicyReport:
        begun, phases = time.time(), list[Phase]()
        self.learner.set_rate(learning_rate(self.recipe, step))
        if not self._ahead:
            phases.append(self.batches.follow(self.actor, self.learner.version))
            self.batches.begin(step)
        batch, self._ahead = self.batches.take(), False
        if self.recipe.asynchronous and not self._is_a_break(step + 1):
            phases.append(self.batches.follow(self.actor, self.learner.version))
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
        return PolicyReport(step=step, total=self.recipe.steps, numbers=numbers, said=scored.said, phases=phases)

    def _is_evaluated(self, step: int) -> bool:
        return step % self.recipe.evaluate_every == 0 or step == self.recipe.steps

    def _is_a_break(self, step: int) -> bool:
        """Whether nothing is made ahead for it: what is saved before it must be all that it depends on."""
        return self._is_evaluated(step) or step % self.recipe.checkpoint_every == 0

    def _make_room(self) -> None:
        """On a device that is shared by turns."""
        self._move(HOST)

    def _fetch(self) -> None:
        self._move(self.device)

    def _move(self, device: torch.device) -> None:
        if self.recipe.placement == "hybrid":
            self.learner.move(device)
            if self._average is not None:
                self._average.module.to(device)

    def _evaluate(self, step: int, show: ShowEvaluation) -> None:
        self.batches.follow(self._shown, self.learner.version)
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
            self.has_parted = have_parted(self.evaluated, tolerance=recipe.part_tolerance, patience=recipe.part_patience)
        show(step, found, self.evaluated)

    def _learnt_now(self) -> dict[str, Tensor]:
        if self.recipe.lora is None:
            return {name: tensor.detach().cpu().clone() for name, tensor in self._shown.state_dict().items()}
        shown = dict(self._shown.named_parameters())
        learns = [name for name, each in self.actor.named_parameters() if each.requires_grad]
        return {name: shown[name].detach().cpu().clone() for name in learns}

    def _save(self, step: int) -> None:
        evaluated = [tuple(each) for each in self.evaluated]
        state = {"step": step, "evaluated": evaluated, "parted": self.has_parted}
        average = {} if self._average is None else {"average": self._average.module.state_dict()}
        self._write(LAST, state | average | {"learner": self.learner.state()})

    def _load(self) -> int:
        """Steps that are done."""
        path = self.folder / CHECKPOINTS / LAST
        if not path.exists():
            return 0
        state = read_checkpoint(path)
        self.learner.take(state["learner"])
        if self._average is not None:
            self._average.module.load_state_dict(state["average"])
        self.evaluated = [Evaluated(*each) for each in state["evaluated"]]
        self.has_parted = bool(state["parted"])
        return int(state["step"])

    def _write(self, name: str, state: dict[str, Any]) -> None:
        with Staging(self.folder / CHECKPOINTS) as staging:
            torch.save(state, staging.path(name))


def _plain(numbers: dict[str, float]) -> dict[str, float | None]:
    """As JSON has them: what is no number is null."""
    return {name: round(value, 6) if math.isfinite(value) else None for name, value in numbers.items()}
