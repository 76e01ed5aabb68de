"""A run of tuning by reward on one device: roll out, reward, learn; evaluate, save; stop where reward and judge part."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from millstream.parallel.training.precision import IN_BFLOAT16
from millstream.trainer.checkpoint import read_checkpoint
from millstream.trainer.evaluate.classifier import load_classifier
from millstream.trainer.optimise import learning_rate
from millstream.trainer.policy.control import Evaluated, best_by_judge, have_parted
from millstream.trainer.policy.evaluation import Evaluation, evaluate
from millstream.trainer.policy.learner import PolicyLearner
from millstream.trainer.policy.matching import MatchingLearner
from millstream.trainer.policy.prompting import evaluated_prompts, step_plan
from millstream.trainer.policy.recipe import PolicyRecipe
from millstream.trainer.policy.rollouts import RolloutEngine, RolloutPlan, Trajectories
from millstream.trainer.reward.clips import RewardClips
from millstream.trainer.reward.rewards import Scored, make_rewards

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


ShowEvaluation = Callable[[int, Evaluation, list[Evaluated]], None]
"""Told the steps that are done, what was found, and all that was found so far."""


class PolicyRun:
    def __init__(self, recipe: PolicyRecipe, spec: ModelSpec, folder: Path, recipe_folder: Path, device: torch.device) -> None:
        recipe.check(spec, recipe_folder)
        self.recipe, self.spec, self.folder, self.device = recipe, spec, folder, device
        self.config, noise = recipe.stream(spec), recipe.noise(spec)
        dtype = torch.bfloat16 if recipe.precision in IN_BFLOAT16 else torch.float32
        self.model = load_model(spec, recipe.weights, device=device, dtype=dtype)
        self.rewards = make_rewards(
            recipe.rewards,
            recipe_folder,
            device,
            frames_per_chunk=self.config.frames_per_chunk,
            patience=recipe.reward_patience,
        )
        judge = recipe.judge_path(recipe_folder)
        self.judge = None if judge is None else load_classifier(judge, device)
        actor = load_dit(spec, recipe.weights, device=device, dtype=torch.float32).train()
        torch.manual_seed(recipe.seed)  # of adapters and of a critic
        if recipe.lora is not None:
            add_adapters(actor, rank=recipe.lora.rank, alpha=recipe.lora.alpha, parts=recipe.lora.parts)
        else:
            actor.requires_grad_(requires_grad=True)
        is_fast = device.type == "cuda" and dtype is torch.bfloat16 and recipe.lora is None
        self.engine = RolloutEngine(actor, self.model, self.config, noise, dtype, is_fast=is_fast)
        self.learner: PolicyLearner | MatchingLearner
        if recipe.algorithm == "matching":
            teacher = load_dit(spec, recipe.teacher, device=device, dtype=torch.float32)
            no_prompt = self.engine.read(("",))
            self.learner = MatchingLearner(actor, teacher, no_prompt, noise, self.config, recipe, device)
        else:
            reference = load_dit(spec, recipe.reference or recipe.weights, device=device, dtype=torch.float32)
            self.learner = PolicyLearner(actor, reference, noise, self.config, recipe.control, recipe, device)
        self.evaluated = list[Evaluated]()
        self.has_parted = False
        """Whether it ended because reward and judge went different ways."""

    @property
    def actor(self) -> CausalDiT:
        return self.learner.actor

    def train(
        self,
        report: Callable[[PolicyReport], None],
        stop: Callable[[], bool],
        show: ShowEvaluation = lambda step, found, all_found: None,
    ) -> bool:
        """To the end, going on from the last checkpoint; or until `stop`, saved there. Whether it is the end."""
        step = self._load()
        if not self.evaluated:
            self._evaluate(step, show)
        with (self.folder / CURVE).open("a") as curve:
            while step < self.recipe.steps and not self.has_parted:
                try:
                    said = self._step(step)
                    step += 1
                    curve.write(json.dumps({"step": step, **_plain(said.numbers)}) + "\n")
                    curve.flush()
                    report(said)
                    if step % self.recipe.evaluate_every == 0 or step == self.recipe.steps:
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

    def learnt(self) -> dict[str, Tensor]:
        """What is exported: the weights that the judge liked best, or the last ones without a judge."""
        best = self.folder / CHECKPOINTS / BEST
        if self.judge is not None and best.exists():
            learnt: dict[str, Tensor] = read_checkpoint(best)["learnt"]
            return learnt
        return self._learnt_now()

    def _step(self, step: int) -> PolicyReport:
        plan, seconds = step_plan(self.recipe, step), dict[str, float]()
        self.learner.set_rate(learning_rate(self.recipe, step))
        self.engine.follow(self.actor, self.learner.version)
        if self.recipe.tried > 1:
            with self._timed("try_s", seconds):
                plan = self._least_worth(plan)
        with self._timed("rollout_s", seconds):
            made = self.engine.roll(plan)
        with self._timed("reward_s", seconds):
            scored = self._score(plan, made)
        with self._timed("learn_s", seconds):
            learnt = self.learner.learn(made, scored.total_B, scored.known_B, plan.group)
        known = int(scored.known_B.sum())
        numbers = {
            "reward": float(scored.total_B[scored.known_B].mean()) if known else math.nan,
            **{f"reward {name}": value for name, value in scored.terms.items()},
            **{f"cost {term.name}_s": term.cost_s for term in self.rewards.terms},
            **learnt,
            "left_out": len(made) - known,
            "fork_at": plan.fork_at,
            "version": self.learner.version,
            "sync_s": self.engine.sync_s,
            **seconds,
        }
        return PolicyReport(step=step, total=self.recipe.steps, numbers=numbers, said=scored.said)

    def _score(self, plan: RolloutPlan, made: Trajectories) -> Scored:
        pixels, fps = self.engine.show(made), self.config.fps
        clips = RewardClips(pixels_BTCYX=pixels, prompts=plan.row_prompts, fps=fps, is_switched=bool(plan.before))
        return self.rewards.score(clips)

    def _least_worth(self, plan: RolloutPlan) -> RolloutPlan:
        """The plan with those of its prompts whose stream is worth least: of the others there is little to learn."""
        trial = replace(plan, group=1, fork_at=0, before=())
        scored = self._score(trial, self.engine.roll(trial))
        worth_P = scored.total_B.masked_fill(~scored.known_B, math.inf)
        kept = worth_P.argsort(stable=True)[: self.recipe.prompts_per_step].tolist()
        before = tuple(plan.before[place] for place in kept) if plan.before else ()
        return replace(plan, prompts=tuple(plan.prompts[place] for place in kept), before=before)

    def _evaluate(self, step: int, show: ShowEvaluation) -> None:
        self.engine.follow(self.actor, self.learner.version)
        found = evaluate(
            self.model,
            self.engine.dit,
            evaluated_prompts(self.recipe),
            config=self.config,
            chunks=self.recipe.chunks,
            rewards=self.rewards,
            judge=self.judge,
        )
        self.evaluated.append(Evaluated(step, found.reward, found.judge))
        line = {"step": step, "reward": found.reward, "flicker": found.flicker}
        if self.judge is not None:
            line["judge"] = found.judge
        parts = {f"reward {name}": each for name, each in found.terms.items()} | {
            f"judge {name}": each for name, each in found.attributes.items()
        }
        with (self.folder / EVALUATIONS).open("a") as file:
            file.write(json.dumps(_plain(line | parts)) + "\n")
        if self.judge is not None:
            if best_by_judge(self.evaluated).step == step:
                self._write(BEST, {"step": step, "learnt": self._learnt_now()})
            recipe = self.recipe
            self.has_parted = have_parted(self.evaluated, tolerance=recipe.part_tolerance, patience=recipe.part_patience)
        show(step, found, self.evaluated)

    def _learnt_now(self) -> dict[str, Tensor]:
        if self.recipe.lora is None:
            return {name: tensor.detach().cpu().clone() for name, tensor in self.actor.state_dict().items()}
        adapters = ((name, each) for name, each in self.actor.named_parameters() if each.requires_grad)
        return {name: each.detach().cpu().clone() for name, each in adapters}

    def _save(self, step: int) -> None:
        evaluated = [tuple(each) for each in self.evaluated]
        state = {"step": step, "evaluated": evaluated, "parted": self.has_parted}
        self._write(LAST, state | {"learner": self.learner.state()})

    def _load(self) -> int:
        """Steps that are done."""
        path = self.folder / CHECKPOINTS / LAST
        if not path.exists():
            return 0
        state = read_checkpoint(path)
        self.learner.take(state["learner"])
        self.evaluated = [Evaluated(*each) for each in state["evaluated"]]
        self.has_parted = bool(state["parted"])
        return int(state["step"])

    def _write(self, name: str, state: dict[str, Any]) -> None:
        with Staging(self.folder / CHECKPOINTS) as staging:
            torch.save(state, staging.path(name))

    @contextmanager
    def _timed(self, what: str, seconds: dict[str, float]) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds[what] = time.perf_counter() - begun


def _plain(numbers: dict[str, float]) -> dict[str, float | None]:
    """As JSON has them: what is no number is null."""
    return {name: round(value, 6) if math.isfinite(value) else None for name, value in numbers.items()}
