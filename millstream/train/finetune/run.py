"""A fine-tuning run on one rank of one or many: its model, its rows, its checkpoints, step after step.

All ranks take the same decisions, from numbers that are alike on all of them: when to save, what to leave
out, when to go back.
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
from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CausalDiT
from millstream.models.registry import described, load_dit, load_model_injectors
from millstream.ops.memory import most_bytes_in_use
from millstream.train.distil.make import make_distillation, setting_of
from millstream.train.distil.remote_judges import place_roles
from millstream.train.distil.training_rows import ClipBatch, Distillation, RoleStates, clip_batch
from millstream.train.finetune import stragglers
from millstream.train.finetune.dataset import ClipSet, DatasetCard, size_names
from millstream.train.finetune.geometries import SizedSequence
from millstream.train.finetune.guard import SpikeGuard
from millstream.train.finetune.loader import RowLoader
from millstream.train.finetune.meter import TuningReport
from millstream.train.finetune.recipe import TuningRecipe
from millstream.train.finetune.roles import Role
from millstream.train.finetune.rows import ClipRows, Noising, flow_error
from millstream.train.finetune.stragglers import Stragglers
from millstream.train.loop import LOG_EVERY, Diverged
from millstream.train.optimise import learning_rate
from millstream.train.parallel.checkpoint import Checkpoints, Remembers
from millstream.train.parallel.deepspeed import DeepSpeedCheckpoints, DeepSpeedLearner
from millstream.train.parallel.groups import TrainingGroups
from millstream.train.parallel.learner import Learner, ModuleLearner, make_learner
from millstream.train.parallel.optimisers.own import WEIGHT
from millstream.train.parallel.own_time import OwnTime
from millstream.train.parallel.precision import IN_BFLOAT16
from millstream.train.parallel.states import AVERAGE
from millstream.train.parallel.task import FlowRows, LearntStep, MayStep, TrainingTask
from millstream.train.run import TrainingRun

CURVE = "curve.jsonl"
CHECKPOINTS = "checkpoints"
ROLLBACKS = "rollbacks.json"
POINTS = 100
"""Smallest number of points of a curve, if the run has as many steps."""
PATIENCE = 5
"""Number of steps left out in a row before a run goes back to its last checkpoint."""
MOST_ROLLBACKS = 3
ANOTHER_SEED = 1_000_003
"""Number added to the seed with every rollback: the same rows would end in the same place."""


ShowStreams = Callable[[int, Mapping[str, Tensor]], None]
"""Function that is given the number of steps done and what has been learnt in them."""


class TuningRun(TrainingRun[TuningReport]):
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
        """On every rank of an initialised process group, or in a process by itself. With a configuration of
        DeepSpeed, its engine takes the place of our own."""
        recipe.check(spec.dit)
        noising = noising_of(recipe, spec)
        check_card(recipe, spec, clips.card)
        first_size = _first_size(recipe, clips)
        self.recipe = recipe
        self.spec = spec
        self.folder = folder
        self.device = device
        self.steps = recipe.steps
        self.checkpoint_every = recipe.checkpoint_every
        self.curve = folder / CURVE
        self.clips = clips
        self._noising = noising
        self._is_steered = is_steered(recipe, spec, clips.card)
        """True if a student is shown what was held, as its teacher was."""
        self._placement = place_roles(recipe, device)
        self.groups: TrainingGroups = self._placement.groups
        self.is_first = self._placement.world.place == 0
        role = self._placement.learns
        plan = recipe.plan_of(role)
        self.sequence = SizedSequence(noising.layout(clips.card.latent_frames), spec.dit, first_size, device)
        dit = self._load(role)
        self.injectors = self._load_injectors() if recipe.actions else None
        """Injectors that learn."""
        learns = [dit] if self.injectors is None else [dit, self.injectors]
        self.learning = sum(
            weight.numel() for part in learns for weight in part.parameters() if weight.requires_grad
        )
        task = TrainingTask(
            dit=dit,
            sequence=self.sequence,
            latent_size=first_size,
            loss=flow_error,
            plan=plan,
            groups=self.groups,
            options=replace(
                recipe.critic_options if role == "critic" else recipe.options,
                compile=recipe.backend(device.type),
            ),
            injectors=self.injectors,
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
            if self._is_steered:
                place: dict[str, Any] = dict(device=device, dtype=torch.float32)
                own = described(spec, recipe.weights)
                setting = replace(setting, injectors=load_model_injectors(own, recipe.weights, **place))
            learner = make_learner(task)
            assert isinstance(learner, ModuleLearner), f"a student is called by itself, got {type(learner)}"
            self.learner = learner
            self._distillation = make_distillation(
                recipe, setting, task, learner, clips, self._load, self._placement
            )
            path = folder / CHECKPOINTS
            is_apart = recipe.placement == "apart"
            states = RoleStates(learner, self._distillation)
            keep = max(recipe.keep, 2 if is_apart else 1)
            self.checkpoints = Checkpoints(
                path / role if is_apart else path, states, keep=keep, beside=beside
            )
        self._own_time = OwnTime(dit, plan, device) if self.groups.everybody.size > 1 else None
        self._steps = 0
        self._tokens = 0
        self._pairs = 0.0
        self._last = dict[str, LearntStep]()
        """Last learnt step of each role, by the name of its loss."""
        self._learnt: Mapping[str, LearntStep] = {}
        self._num_left_out = 0
        self._reported: TuningReport | None = None
        path = folder / ROLLBACKS
        self._rollbacks: list[dict[str, int]] = json.loads(path.read_text()) if path.exists() else []

    def train(
        self,
        report: Callable[[TuningReport], None],
        stop: Callable[[], bool],
        show: ShowStreams = lambda step, learnt: None,
    ) -> bool:
        """Train to the end, going on from the newest checkpoint, or until `stop` on any rank, with a
        checkpoint there; return whether it is the end. `show` is called by the first rank, before the first
        step and at checkpoints, if the recipe asks for streams."""
        self._show_streams = show
        return self.run(report, stop)

    def load(self) -> int:
        self._begun = time.perf_counter()
        self._reported = None
        newest = self._newest()
        return self.checkpoints.load(newest) if newest is not None else 0

    def begin(self, step: int, kept: list[dict[str, Any]]) -> RowLoader:
        if kept:
            self._tokens = kept[-1]["tokens"]
        if step == 0:
            self.show(step)
        self._loader = RowLoader(self._rows, self.device, position=step)
        return self._loader

    def take_step(self, step: int) -> int:
        self._set_rates(learning_rate(self.recipe, step))
        self._learnt = self._learn(step, self._loader.next())
        self._num_left_out = self._left_out
        if self._num_left_out >= PATIENCE:
            step = self._go_back(step)
            self._loader.seek(step)
            return step
        self.checkpoints.look()
        self._look_for_stragglers(step + 1)
        return step + 1

    def report(self, step: int) -> tuple[TuningReport, dict[str, Any]] | None:
        log_every = min(LOG_EVERY, max(1, self.steps // POINTS))
        is_whole = all(each.taken for each in self._learnt.values())
        if not self.is_first or (step % log_every and step not in (1, self.steps) and is_whole):
            return None
        report = self._report(step, self._learnt, time.perf_counter() - self._begun, self._loader.waited_s)
        line = self._line(report, report.since(self._reported).waiting)
        self._reported = report
        return report, line

    def save(self, step: int) -> None:
        self.checkpoints.save(step)

    def show(self, step: int) -> None:
        """Make streams of what is learnt, if the recipe asks for them; the time this takes is not counted as
        training."""
        begun = time.perf_counter()
        if self.recipe.shows_streams:
            learnt = self.learnt()
            if self.is_first:
                self._show_streams(step, learnt)
        self._begun += time.perf_counter() - begun

    def finish(self) -> None:
        self.checkpoints.finish()

    def is_asked(self, asked: bool) -> bool:
        if self._placement.world.size == 1:
            return asked
        return bool(self._placement.world.sum(torch.tensor(float(asked), device=self.device), "stop") > 0)

    @property
    def may_save(self) -> bool:
        return not self._num_left_out

    def learnt(self) -> dict[str, Tensor]:
        """Return the learnt weights, on every rank: averaged if the recipe averages."""
        return self.learner.weights(AVERAGE if self.recipe.ema else WEIGHT)

    def _load(self, role: Role, dtype: torch.dtype | None = None) -> CausalDiT:
        """Load a role's model. Weights that learn are in float32, unless those are in host memory; those that
        do not, in the dtype of matmuls. Blocks' weights are read when they are shared out."""
        learns = role != "teacher"
        spec = find_model(self.recipe.model_of(role))
        kept_in = self.recipe.learns_in if learns and self.recipe.lora is None else self.recipe.precision
        dtype = dtype or (torch.bfloat16 if kept_in in IN_BFLOAT16 else torch.float32)
        weights = self.recipe.weights_of(role)
        dit = load_dit(
            spec, weights, device=self.device, dtype=dtype, later=lambda name: name.startswith("blocks.")
        )
        dit.requires_grad_(requires_grad=learns)
        if learns and (lora := self.recipe.lora) is not None:
            torch.manual_seed(self.recipe.seed)
            add_adapters(dit, rank=lora.rank, alpha=lora.alpha, parts=lora.parts)
        return dit

    def _load_injectors(self) -> Injectors:
        """Load the model's own, or make idle ones, the same on every rank. What they know of a camera stays as
        it is."""
        takes = self.clips.card.actions
        assert takes is not None, "the card was checked"
        weights = self.recipe.weights
        own = described(self.spec, weights)
        place: dict[str, Any] = dict(device=self.device, dtype=torch.float32)
        if own.conditions.actions is not None:
            found = load_model_injectors(own, weights, **place)
            assert found.actions is not None, "its files say that it takes actions"
            found.actions.requires_grad_(requires_grad=True)
            return found
        torch.manual_seed(self.recipe.seed)
        conditions = replace(own.conditions, actions=takes)
        return Injectors(conditions, self.spec.dit).to(self.device)

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
        return (
            mine if self._placement.exchange is None else max(self._placement.world.gather(mine, "left out"))
        )

    def _newest(self) -> Path | None:
        """The newest checkpoint that every role has: they are written apart where roles are."""
        if self._placement.exchange is None:
            return self.checkpoints.newest
        found = self._placement.world.gather(
            sorted(path.name for path in self.checkpoints.all()), "checkpoints"
        )
        name = max(set.intersection(*map(set, found)), default=None)
        return None if name is None else self.checkpoints.folder / name

    def _rows(self, step: int) -> FlowRows | ClipBatch:
        seed = self.recipe.seed + ANOTHER_SEED * len(self._rollbacks)
        batch = self.recipe.batch
        if self._distillation is not None:
            found = clip_batch(self.clips, self._numbers, step, batch=batch, seed=seed)
            return found if self._is_steered else found._replace(actions_BFA=None)
        rows = ClipRows(self.clips, self._noising, batch=batch, seed=seed).rows(step, self._numbers)
        return rows if self.recipe.actions else rows._replace(actions_BFA=None)

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
        newest = self._newest()
        before = len(self._rollbacks)
        if newest is None or before == MOST_ROLLBACKS:
            raise Diverged(
                f"step {step}: {PATIENCE} steps in a row had gradients that cannot be followed, after "
                f"{before} times of going "
                "back; lower lr or grad_clip, or look at the clips"
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
            mine = torch.tensor(self._own_time.pop_mean(), device=self.device)
            self.stragglers.look(self.groups.everybody.collect(mine, "own time").tolist())

    def _report(
        self, step: int, learnt: Mapping[str, LearntStep], seconds: float, waited_s: float
    ) -> TuningReport:
        """Return a report of all roles, as they last learnt; the critic's norm has its name."""
        losses = {name: float(each.loss) for name, each in self._last.items()}
        losses |= {
            f"{name} norm" if name == "critic" else "norm": float(each.norm)
            for name, each in self._last.items()
        }
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

    def _line(self, said: TuningReport, waiting: float) -> dict[str, Any]:
        """Return a line of the curve; null for a number that is not finite."""
        losses = {name: value if math.isfinite(value) else None for name, value in said.losses.items()}
        peak = round(most_bytes_in_use(self.device) / 2**30, 3)
        told: dict[str, Any] = {
            "step": said.step,
            "seconds": round(said.seconds, 3),
            "lr": said.lr,
            **losses,
            "peak_gib": peak,
        }
        if self.stragglers.slow:
            told["slow_ranks"] = {f"{rank}": round(times, 2) for rank, times in self.stragglers.slow.items()}
        return told | {"tokens": said.tokens, "data": round(waiting, 4)}


def _learner(
    task: TrainingTask,
    recipe: TuningRecipe,
    folder: Path,
    deepspeed: Mapping[str, Any] | None,
    beside: Mapping[str, Remembers],
) -> tuple[Learner, Checkpoints]:
    if deepspeed is not None and task.injectors is not None:
        raise ConfigError("actions = true is not for DeepSpeed; leave out one of them")
    if deepspeed is None:
        learner = make_learner(task)
        return learner, Checkpoints(folder, learner, keep=recipe.keep, beside=beside)
    engine = DeepSpeedLearner(task, deepspeed, recipe.batch)
    return engine, DeepSpeedCheckpoints(folder, engine, keep=recipe.keep, beside=beside)


def _first_size(recipe: TuningRecipe, clips: ClipSet) -> tuple[int, int]:
    """Return the first latent size of the clips; pipelines and methods with a teacher take no second one."""
    if recipe.plan.pp > 1 and len(clips.buckets) > 1:
        raise ConfigError(
            f"pp > 1 takes clips of one size, on which its ranks agree once; {recipe.data} has "
            f"{size_names(clips.buckets)}: "
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


def is_steered(recipe: TuningRecipe, spec: ModelSpec, card: DatasetCard) -> bool:
    """Return whether the clips have the actions that the model takes."""
    own = described(spec, recipe.weights).conditions.actions
    return own is not None and own == card.actions


def check_card(recipe: TuningRecipe, spec: ModelSpec, card: DatasetCard) -> None:
    """Check that the recipe can learn from such clips."""
    if card.model != spec.name:
        raise ConfigError(
            f"{recipe.data} was made for {card.model}, the recipe trains {spec.name}; prepare it for that"
        )
    own = described(spec, recipe.weights).conditions.actions
    if recipe.actions and card.actions is None:
        raise ConfigError(
            f"{recipe.data} has no actions; prepare it with a file of them beside each video, and --actions"
        )
    if is_steered(recipe, spec, card) and recipe.placement == "apart":
        raise ConfigError(
            "placement = 'apart' teaches no model that takes actions; leave it out, or prepare clips without"
        )
    if recipe.actions and own is not None and own != card.actions:
        raise ConfigError(
            f"{recipe.data} has other actions than {spec.name} takes; prepare it for that model"
        )
    frames_per_chunk = noising_of(recipe, spec).frames_per_chunk
    if card.latent_frames % frames_per_chunk:
        raise ConfigError(
            f"clips of {card.latent_frames} latent frames are not whole chunks of {frames_per_chunk}; "
            "prepare them with a multiple of it, or set frames_per_chunk"
        )
