"""A fine-tuning run on one rank of one or many: its model, its rows, its checkpoints, step after step.

All ranks take the same decisions, from numbers that are alike on all of them: when to save, what to leave out, when to go back.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from millstream.core.config import ModelSpec
from millstream.core.errors import ConfigError
from millstream.core.files import Staging
from millstream.core.presets import find_model
from millstream.models.adapters import add_adapters
from millstream.models.dit import CausalDiT
from millstream.models.registry import load_dit
from millstream.ops.memory import most_bytes_in_use
from millstream.parallel.training.checkpoint import Checkpoints, Remembers
from millstream.parallel.training.deepspeed import DeepSpeedCheckpoints, DeepSpeedLearner
from millstream.parallel.training.groups import TrainingGroups
from millstream.parallel.training.learner import Learner, ModuleLearner, make_learner
from millstream.parallel.training.optimisers.own import WEIGHT
from millstream.parallel.training.own_time import OwnTime
from millstream.parallel.training.precision import IN_BFLOAT16
from millstream.parallel.training.states import AVERAGE
from millstream.parallel.training.task import FlowRows, LearntStep, MayStep, TrainingTask
from millstream.trainer.curve import cut_curve
from millstream.trainer.distil.apart import place_roles
from millstream.trainer.distil.lessons import ClipBatch, Distillation, RoleStates, clip_batch
from millstream.trainer.distil.make import make_distillation, setting_of
from millstream.trainer.loop import LOG_EVERY, Diverged
from millstream.trainer.optimise import learning_rate
from millstream.trainer.tuning import stragglers
from millstream.trainer.tuning.dataset import ClipSet, DatasetCard, named
from millstream.trainer.tuning.geometries import SizedSequence
from millstream.trainer.tuning.guard import SpikeGuard
from millstream.trainer.tuning.loader import RowLoader
from millstream.trainer.tuning.meter import TuningReport
from millstream.trainer.tuning.recipe import TuningRecipe
from millstream.trainer.tuning.roles import Role
from millstream.trainer.tuning.rows import ClipRows, Noising, flow_error
from millstream.trainer.tuning.stragglers import Stragglers

CURVE, CHECKPOINTS, ROLLBACKS = "curve.jsonl", "checkpoints", "rollbacks.json"
POINTS = 100
"""Of a curve, at least, if the run has as many steps."""
PATIENCE = 5
"""Steps left out in a row before a run goes back to its last checkpoint."""
MOST_ROLLBACKS = 3
ANOTHER_SEED = 1_000_003
"""Added with every rollback: the same rows would end in the same place."""


ShowStreams = Callable[[int, Mapping[str, Tensor]], None]
"""Told the steps that are done and what has been learnt in them."""


class TuningRun:
    def __init__(
        self,
        recipe: TuningRecipe,
        spec: ModelSpec,
        clips: ClipSet,
        folder: Path,
        device: torch.device,
        *,
        deepspeed: Mapping[str, Any] | None = None,
    ) -> None:
        """On every rank of an initialised process group, or in a process by itself. With a configuration of DeepSpeed, its
        engine takes the place of our own."""
        recipe.check(spec.dit)
        noising = noising_of(recipe, spec)
        check_card(recipe, spec, clips.card)
        first_size = _first_size(recipe, clips)
        self.recipe, self.spec, self.folder, self.device = recipe, spec, folder, device
        self.clips, self._noising = clips, noising
        self._placement = place_roles(recipe, device)
        self.groups: TrainingGroups = self._placement.groups
        self.is_first, role = self._placement.world.place == 0, self._placement.learns
        plan = recipe.plan_of(role)
        self.sequence = SizedSequence(noising.layout(clips.card.latent_frames), spec.dit, first_size, device)
        dit = self._load(role)
        self.learning = sum(parameter.numel() for parameter in dit.parameters() if parameter.requires_grad)
        task = TrainingTask(
            dit=dit,
            sequence=self.sequence,
            latent_size=first_size,
            loss=flow_error,
            plan=plan,
            groups=self.groups,
            options=replace(recipe.critic_options if role == "critic" else recipe.options, compile=recipe.backend(device.type)),
        )
        share = recipe.batch // plan.dp
        self._numbers = range(self.groups.place.dp * share, (self.groups.place.dp + 1) * share)
        self._guards = {role: SpikeGuard(recipe.spike) for role in recipe.roles}
        self.stragglers = Stragglers()
        beside = {f"spike guard of the {role}": guard for role, guard in self._guards.items()}
        self._distillation: Distillation | None = None
        if recipe.method == "flow":
            self.learner, self.checkpoints = _learner(task, recipe, folder / CHECKPOINTS, deepspeed, beside)
        else:
            if deepspeed is not None:
                raise ConfigError(f'DeepSpeed trains one model: method = "flow", got {recipe.method!r}')
            setting = setting_of(recipe, clips, task, self._numbers, device)
            learner = make_learner(task)
            assert isinstance(learner, ModuleLearner), f"a student is called by itself, got {type(learner)}"
            self.learner = learner
            self._distillation = make_distillation(recipe, setting, task, learner, clips, self._load, self._placement)
            path, is_apart = folder / CHECKPOINTS, recipe.placement == "apart"
            states, keep = RoleStates(learner, self._distillation), max(recipe.keep, 2 if is_apart else 1)
            self.checkpoints = Checkpoints(path / role if is_apart else path, states, keep=keep, beside=beside)
        self._own_time = OwnTime(dit, plan, device) if self.groups.everybody.size > 1 else None
        self._steps, self._tokens, self._pairs = 0, 0, 0.0
        self._last = dict[str, LearntStep]()
        """What each role learnt when it last did, by the name of its loss."""
        path = folder / ROLLBACKS
        self._rollbacks: list[dict[str, int]] = json.loads(path.read_text()) if path.exists() else []

    def train(
        self, report: Callable[[TuningReport], None], stop: Callable[[], bool], show: ShowStreams = lambda step, learnt: None
    ) -> bool:
        """To the end, going on from the newest checkpoint; or until `stop` on any rank, saved there. Whether it is the end.
        `show` is called by the first rank, before the first step and at checkpoints, if the recipe asks for streams."""
        newest, begun, said = self._newest(), time.perf_counter(), None
        step = self.checkpoints.load(newest) if newest is not None else 0
        log_every = min(LOG_EVERY, max(1, self.recipe.steps // POINTS))
        if self.is_first and (kept := cut_curve(self.folder / CURVE, lambda made: made < step)):
            self._tokens = kept[-1]["tokens"]
        if step == 0:
            begun += self._show(step, show)
        with (self.folder / CURVE).open("a") as curve, RowLoader(self._rows, self.device, position=step) as loader:
            while step < self.recipe.steps:
                self._set_rates(learning_rate(self.recipe, step))
                learnt = self._learn(step, loader.next())
                left_out = self._left_out
                if left_out >= PATIENCE:
                    step = self._go_back(step)
                    loader.seek(step)
                    continue
                step += 1
                self.checkpoints.look()
                self._look_for_stragglers(step)
                is_whole = all(each.taken for each in learnt.values())
                if self.is_first and (step % log_every == 0 or step in (1, self.recipe.steps) or not is_whole):
                    before, said = said, self._said(step, learnt, time.perf_counter() - begun, loader.waited_s)
                    curve.write(self._line(said, said.since(before).waiting) + "\n")
                    curve.flush()
                    report(said)
                stopped = self._anybody(stop())
                due = step % self.recipe.checkpoint_every == 0 and not left_out
                if due or stopped or step == self.recipe.steps:
                    self.checkpoints.save(step)
                if stopped:
                    break
                if due or step == self.recipe.steps:
                    begun += self._show(step, show)
        self.checkpoints.finish()
        return step == self.recipe.steps

    def learnt(self) -> dict[str, Tensor]:
        """What has been learnt, on every rank: averaged if the recipe averages."""
        return self.learner.weights(AVERAGE if self.recipe.ema else WEIGHT)

    def _show(self, step: int, show: ShowStreams) -> float:
        """The seconds it took, which are none of training's."""
        begun = time.perf_counter()
        if self.recipe.shows_streams:
            learnt = self.learnt()
            if self.is_first:
                show(step, learnt)
        return time.perf_counter() - begun

    def _load(self, role: Role, dtype: torch.dtype | None = None) -> CausalDiT:
        """Weights that learn are in float32, unless those are in host memory; those that do not, in what products are made
        in. Those of blocks are read when they are shared out."""
        learns, spec = role != "teacher", find_model(self.recipe.model_of(role))
        kept_in = self.recipe.learns_in if learns and self.recipe.lora is None else self.recipe.precision
        dtype = dtype or (torch.bfloat16 if kept_in in IN_BFLOAT16 else torch.float32)
        weights = self.recipe.weights_of(role)
        dit = load_dit(spec, weights, device=self.device, dtype=dtype, later=lambda name: name.startswith("blocks."))
        dit.requires_grad_(requires_grad=learns)
        if learns and (lora := self.recipe.lora) is not None:
            torch.manual_seed(self.recipe.seed)
            add_adapters(dit, rank=lora.rank, alpha=lora.alpha, parts=lora.parts)
        return dit

    def _learn(self, step: int, rows: FlowRows | ClipBatch) -> dict[str, LearntStep]:
        may_step: dict[str, MayStep] = {role: guard.may_step for role, guard in self._guards.items()}
        self._steps += 1
        if isinstance(rows, FlowRows):
            self._turn_to(rows)
            learnt = {"flow": self.learner.learn(rows, may_step["student"])}
        else:
            assert self._distillation is not None, "clips by themselves are distilled"
            learnt = self._distillation.learn(step, rows, may_step)
        self._last |= learnt
        return learnt

    def _set_rates(self, lr: float) -> None:
        self.learner.set_rate(lr)
        if self._distillation is not None:
            self._distillation.set_rate(lr * self.recipe.critic_options.optimiser.lr / self.recipe.lr)

    @property
    def _left_out(self) -> int:
        """Steps in a row that some role could not take."""
        mine = max(guard.in_a_row for guard in self._guards.values())
        return mine if self._placement.exchange is None else max(self._placement.world.gather(mine, "left out"))

    def _newest(self) -> Path | None:
        """The newest checkpoint that every role has: they are written apart where roles are."""
        if self._placement.exchange is None:
            return self.checkpoints.newest
        found = self._placement.world.gather(sorted(path.name for path in self.checkpoints.all()), "checkpoints")
        name = max(set.intersection(*map(set, found)), default=None)
        return None if name is None else self.checkpoints.folder / name

    def _rows(self, step: int) -> FlowRows | ClipBatch:
        seed, batch = self.recipe.seed + ANOTHER_SEED * len(self._rollbacks), self.recipe.batch
        if self._distillation is not None:
            return clip_batch(self.clips, self._numbers, step, batch=batch, seed=seed)
        rows = ClipRows(self.clips, self._noising, batch=batch, seed=seed)
        return rows.rows(step, self._numbers)

    def _turn_to(self, rows: FlowRows) -> None:
        """Attend in their size, and count them."""
        height, width = rows.latents_BFCYX.shape[-2:]
        self.sequence.turn_to((height, width))
        tokens = self.recipe.batch * self.sequence.num_tokens
        self._tokens += tokens
        self._pairs += tokens * self.sequence.keys_per_query

    def _go_back(self, step: int) -> int:
        """To the newest checkpoint, and on from there with other rows."""
        self.checkpoints.finish()
        newest, before = self._newest(), len(self._rollbacks)
        if newest is None or before == MOST_ROLLBACKS:
            raise Diverged(
                f"step {step}: {PATIENCE} steps in a row had gradients that cannot be followed, after {before} times of going "
                "back; lower lr or clip, or look at the clips"
            )
        done = self.checkpoints.load(newest)
        self._rollbacks.append({"at": step, "to": done})
        if self.is_first:
            with Staging(self.folder) as staging:
                staging.path(ROLLBACKS).write_text(json.dumps(self._rollbacks))
        for guard in self._guards.values():
            guard.forget()
        return done

    def _look_for_stragglers(self, step: int) -> None:
        if self._own_time is not None and step % stragglers.EVERY == 0:
            mine = torch.tensor(self._own_time.take(), device=self.device)
            self.stragglers.look(self.groups.everybody.collect(mine, "own time").tolist())

    def _anybody(self, asked: bool) -> bool:
        if self._placement.world.size == 1:
            return asked
        return bool(self._placement.world.sum(torch.tensor(float(asked), device=self.device), "stop") > 0)

    def _said(self, step: int, learnt: Mapping[str, LearntStep], seconds: float, waited_s: float) -> TuningReport:
        """Of all roles, as they last learnt; the critic's norm under its name."""
        losses = {name: float(each.loss) for name, each in self._last.items()}
        losses |= {f"{name} norm" if name == "critic" else "norm": float(each.norm) for name, each in self._last.items()}
        losses["skipped"] = float(any(not each.taken for each in learnt.values()))
        if (scale := self.learner.loss_scale) is not None:
            losses |= {"loss_scale": scale.value, "overflows": float(scale.skipped)}
        return TuningReport(
            step=step - 1,
            total=self.recipe.steps,
            losses=losses,
            lr=learning_rate(self.recipe, step - 1),
            seconds=seconds,
            steps=self._steps,
            tokens=self._tokens,
            pairs=self._pairs,
            waited_s=waited_s,
        )

    def _line(self, said: TuningReport, waiting: float) -> str:
        """Of the curve; what is no number is null."""
        losses = {name: value if math.isfinite(value) else None for name, value in said.losses.items()}
        peak = round(most_bytes_in_use(self.device) / 2**30, 3)
        told: dict[str, Any] = {"step": said.step, "seconds": round(said.seconds, 3), "lr": said.lr, **losses, "peak_gib": peak}
        if self.stragglers.slow:
            told["slow_ranks"] = {f"{rank}": round(times, 2) for rank, times in self.stragglers.slow.items()}
        return json.dumps(told | {"tokens": said.tokens, "data": round(waiting, 4)})


def _learner(
    task: TrainingTask,
    recipe: TuningRecipe,
    folder: Path,
    deepspeed: Mapping[str, Any] | None,
    beside: Mapping[str, Remembers],
) -> tuple[Learner, Checkpoints]:
    if deepspeed is None:
        learner = make_learner(task)
        return learner, Checkpoints(folder, learner, keep=recipe.keep, beside=beside)
    engine = DeepSpeedLearner(task, deepspeed, recipe.batch)
    return engine, DeepSpeedCheckpoints(folder, engine, keep=recipe.keep, beside=beside)


def _first_size(recipe: TuningRecipe, clips: ClipSet) -> tuple[int, int]:
    """Of clips; pipelines and methods with a teacher take no second one."""
    if recipe.plan.pp > 1 and len(clips.buckets) > 1:
        raise ConfigError(
            f"pp > 1 takes clips of one size, on which its ranks agree once; {recipe.data} has {named(clips.buckets)}: "
            "prepare it with one of them as --sizes, or take dp, cp or tp instead"
        )
    return clips.latent_sizes[0] if recipe.method == "flow" else clips.latent_size


def noising_of(recipe: TuningRecipe, spec: ModelSpec) -> Noising:
    return Noising(
        forcing=recipe.forcing,
        frames_per_chunk=recipe.frames_per_chunk or spec.stream.frames_per_chunk,
        window=recipe.window or spec.stream.window,
        shift=recipe.shift or spec.stream.shift,
        drop=recipe.drop,
        noise=(recipe.noise_from, recipe.noise_to),
    )


def check_card(recipe: TuningRecipe, spec: ModelSpec, card: DatasetCard) -> None:
    """That the recipe can learn from such clips."""
    if card.model != spec.name:
        raise ConfigError(f"{recipe.data} was made for {card.model}, the recipe trains {spec.name}; prepare it for that")
    frames_per_chunk = noising_of(recipe, spec).frames_per_chunk
    if card.latent_frames % frames_per_chunk:
        raise ConfigError(
            f"clips of {card.latent_frames} latent frames are not whole chunks of {frames_per_chunk}; "
            "prepare them with a multiple of it, or set frames_per_chunk"
        )
