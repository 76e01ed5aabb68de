"""Distillation of Brook: the methods of this folder on a pool of rendered clips, as a stage of its training.

Every rank has all roles whole and its own rows of each batch. What a row learns from depends on the seed, the
stage, the step and the row's number, so a stage is the same however many ranks share it.
Shapes: K clips, W wordings, B rows, F frames, C latent channels, Y and X latent rows and columns, S text
tokens, E text width.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from millstream.models.brook.text import PAD
from millstream.models.dit import CausalDiT
from millstream.ops.precision import working_dtype
from millstream.train.distil.make import distillation_of
from millstream.train.distil.row_randomness import RowRandomness
from millstream.train.distil.self_forcing import Painter
from millstream.train.distil.training_rows import ClipBatch, DistilSetting, RoleStates
from millstream.train.finetune.rows import HOST, clip_order, flow_error
from millstream.train.loop import keyed_generator
from millstream.train.methods.flow import TextAndDiT
from millstream.train.optimise import learning_rate
from millstream.train.options import MethodOptions
from millstream.train.parallel.groups import create_training_groups
from millstream.train.parallel.learner import ModuleLearner, make_learner
from millstream.train.parallel.optimisers.choice import OptimiserChoice
from millstream.train.parallel.plan import ParallelPlan
from millstream.train.parallel.precision import Precision
from millstream.train.parallel.predictor import frozen_predictor
from millstream.train.parallel.recompute import prepare_blocks
from millstream.train.parallel.states import AVERAGE
from millstream.train.parallel.task import StepOptions, TrainingTask
from millstream.train.plan import StagePlan
from millstream.train.pool import LatentPool
from millstream.train.sequence import ChunkedSequence, together
from millstream.train.share import ALONE, BatchShare

COMPILER = "inductor"
"""Backend that compiles the blocks, where they are compiled."""


class PoolTraining:
    """Student that learns from its teacher; both read prompts by the teacher's text encoder, which no longer
    learns."""

    def __init__(
        self,
        student: CausalDiT,
        teacher: TextAndDiT,
        pool: LatentPool,
        stage: StagePlan,
        options: MethodOptions,
        *,
        levels: tuple[float, ...],
        seed: int,
        favoured: Sequence[int] = (),
        favoured_by: float = 1.0,
        compiled: bool = False,
        share: BatchShare = ALONE,
    ) -> None:
        """`levels` are the noise levels of the student's steps. Captions that say one of the words
        `favoured`, given by their token ids, are drawn `favoured_by` times as often. Modules are copied."""
        device = pool.latents_KFCYX.device
        _, frames, _, rows, columns = pool.latents_KFCYX.shape
        self._pool = pool
        self._stage = stage
        self._text = teacher.text
        self._begun_as = student
        self._seed = keyed_generator(HOST, seed, stage.name).initial_seed()
        self._weight_N = pool.favouring(favoured, favoured_by).flatten().cpu() if favoured else None
        plan = ParallelPlan(dp=share.ranks)
        groups = create_training_groups(plan, device)
        backend = COMPILER if compiled else ""
        own = stage.batch // share.ranks
        self._numbers = range(groups.place.dp * own, (groups.place.dp + 1) * own)
        precision: Precision = "bf16" if working_dtype(device) is torch.bfloat16 else "fp32"
        task = TrainingTask(
            dit=_learning(student),
            sequence=ChunkedSequence(together(frames), student.config, (rows, columns), device),
            latent_size=(rows, columns),
            loss=flow_error,
            plan=plan,
            groups=groups,
            options=StepOptions(
                optimiser=OptimiserChoice(name="muon", lr=stage.lr, weight_decay=stage.weight_decay),
                grad_clip=stage.grad_clip,
                precision=precision,
                ema=stage.ema,
                compile=backend,
            ),
        )
        setting = DistilSetting(
            config=student.config,
            latent_size=(rows, columns),
            latent_frames=frames,
            levels=levels,
            numbers=self._numbers,
            batch=stage.batch,
            no_prompt_SE=self._read(torch.full_like(pool.ids_KWS[0, :1], PAD))[0],
            paints_in=working_dtype(device),
            device=device,
            injectors=copy.deepcopy(teacher.injectors).requires_grad_(requires_grad=False),
            tracks_of=None if pool.actions_KFA is None or pool.walks_K is None else self._tracks_of,
        )
        self._walks = [] if pool.walks_K is None else pool.walks_K.nonzero()[:, 0].tolist()
        judge = copy.deepcopy(teacher.dit)
        prepare_blocks(judge, "none", backend=backend)
        self.learner = _learner(task)
        self.distillation = distillation_of(
            options,
            setting,
            self.learner,
            frozen_predictor(judge, task.sequence, plan, groups, precision),
            lambda: _learner(
                replace(task, dit=_learning(teacher.dit), options=replace(task.options, ema=0.0))
            ),
            lambda: Painter(
                copy.deepcopy(student), setting.paints_in, is_fast=compiled and device.type == "cuda"
            ),
            self._text_of,
        )
        self._roles = RoleStates(self.learner, self.distillation)

    def step(self, step: int) -> dict[str, Tensor]:
        rate = learning_rate(self._stage, step)
        self.learner.set_rate(rate)
        self.distillation.set_rate(rate)
        learnt = self.distillation.learn(
            step, self.batch(step), {"student": math.isfinite, "critic": math.isfinite}
        )
        norms = {"critic norm" if name == "critic" else "norm": each.norm for name, each in learnt.items()}
        return {name: each.loss for name, each in learnt.items()} | norms

    def state(self) -> dict[str, Any]:
        return {"roles": {state.name: dict(state.tensors) for state in self._roles.states()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._roles.load_state(state["roles"].__getitem__)

    def averaged(self) -> CausalDiT:
        found = copy.deepcopy(self._begun_as).requires_grad_(requires_grad=False).eval()
        found.load_state_dict(self.learner.weights(AVERAGE), strict=False)  # buffers are as they began
        return found

    def batch(self, step: int) -> ClipBatch:
        """This rank's rows: each a caption, by its number among all, and the clip that it is of."""
        captions = self._captions(step)
        mine = [captions[number] for number in self._numbers]
        clips = [caption // self._pool.ids_KWS.shape[1] for caption in mine]
        held = self._pool.actions_KFA
        actions = None if held is None else held[clips].float()
        latents = self._pool.latents_KFCYX[clips].float()
        return ClipBatch(self._seed, mine, latents, self._text_of(mine), actions)

    def _captions(self, step: int) -> list[int]:
        """The numbers of the whole batch's captions: one of each clip in its turn, or those that are favoured
        more often."""
        batch, (clips, wordings) = self._stage.batch, self._pool.ids_KWS.shape[:2]
        generator = keyed_generator(HOST, "captions", self._seed, step)
        if self._weight_N is not None:
            return torch.multinomial(self._weight_N, batch, replacement=True, generator=generator).tolist()
        wording = torch.randint(wordings, (batch,), generator=generator).tolist()
        order = clip_order(clips, self._seed, batch, step)
        return [clip * wordings + number for clip, number in zip(order, wording, strict=True)]

    def _tracks_of(self, captions: Sequence[int], lots: RowRandomness) -> Tensor:
        """Any walk's track for streams of a walk's captions; where nobody walks nothing is held."""
        pool = self._pool
        assert pool.actions_KFA is not None, "tracks of clips without actions"
        assert pool.walks_K is not None, "actions of clips that are no walks"
        drawn = (lots.uniform("tracks", 1)[:, 0] * len(self._walks)).long().tolist()
        tracks_BFA = pool.actions_KFA[[self._walks[number] for number in drawn]].float()
        walked_B = pool.walks_K[[caption // pool.ids_KWS.shape[1] for caption in captions]]
        return tracks_BFA * walked_B[:, None, None]

    def _text_of(self, captions: Sequence[int]) -> Tensor:
        return self._read(self._pool.ids_KWS.flatten(0, 1)[list(captions)])

    @torch.no_grad()
    def _read(self, ids_BS: Tensor) -> Tensor:
        text: Tensor = self._text(ids_BS)
        return text


def _learning(dit: CausalDiT) -> CausalDiT:
    return copy.deepcopy(dit).requires_grad_(requires_grad=True)


def _learner(task: TrainingTask) -> ModuleLearner:
    learner = make_learner(task)
    assert isinstance(learner, ModuleLearner), f"a role is called by itself, got {type(learner)}"
    return learner
