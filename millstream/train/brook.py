"""Brook's training, stage after stage: VAE, teacher, few-step student, self-forcing; then one file.

Each stage leaves its averaged weights in the run's folder; a stage whose weights are there is not trained
again.
Shapes: B batch, T pixel frames, K clips, W wordings, S text tokens.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from millstream.core.config import SPATIAL_STRIDE, BrookTextConfig, BrookVAEConfig, ModelSpec
from millstream.core.errors import ConfigError
from millstream.core.files import Staging, write_whole
from millstream.core.presets import find_model
from millstream.models.brook.bundle import BrookParts, save_bundle
from millstream.models.brook.text import BrookText, WordTokenizer, padded
from millstream.models.brook.vae import BrookVAE
from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CausalDiT
from millstream.train.checkpoint import read_checkpoint
from millstream.train.data.captions import WORDS, canonical_captions
from millstream.train.data.render import render
from millstream.train.data.scene import sample_scenes
from millstream.train.distil.pool_training import PoolTraining
from millstream.train.evaluate.classifier import ClipClassifier, save_classifier
from millstream.train.evaluate.motion import MotionJudge, MotionPool, render_motion, save_motion_judge
from millstream.train.loop import Method, StepReport, Training, TurnTraining, train_stage
from millstream.train.methods.classify import ClassifyMethod
from millstream.train.methods.flow import FlowMethod, TextAndDiT
from millstream.train.methods.motion import MotionMethod
from millstream.train.methods.vae import VAEMethod, measure_latents
from millstream.train.options import OPTIONS, FlowOptions, SelfForcingOptions, VAEOptions
from millstream.train.plan import RunPlan, StagePlan
from millstream.train.pool import LatentPool, PixelPool
from millstream.train.pool_rendering import (
    Part,
    PoolRendering,
    check_walks,
    joined,
    render_clips,
    vocabulary_of,
)
from millstream.train.samples import reconstructions, student_streams, taught_streams
from millstream.train.share import ALONE, BatchShare

Report = Callable[[str, StepReport], None]
Show = Callable[[str, int, np.ndarray], None]
"""Takes a stage's name, the step and a picture of what it can do by now."""
SHOWN = 6
"""Scenes on a sheet of samples."""
RENDERED = "rendered"
"""Folder of a run with batches of clips, until it is over."""
WHOLE = "whole.json"
"""File in it that names them, once all are there: how many walks there was time for, a later process keeps to."""


class BrookRun:
    """The roles of one run, trained as far as its folder says."""

    def __init__(
        self, plan: RunPlan, folder: Path, *, device: torch.device, share: BatchShare = ALONE
    ) -> None:
        """On one process, or on every rank of those that share the batches; they share the folder too."""
        plan.check_ranks(share.ranks)
        check_walks(plan)
        self.plan = plan
        self.folder = folder
        self.device = device
        self.share = share
        spec = find_model(plan.model)
        conditions = dataclasses.replace(spec.conditions, actions=plan.actions)
        self.spec = spec if plan.actions is None else dataclasses.replace(spec, conditions=conditions)
        self.vocabulary = vocabulary_of(plan)
        self.tokenizer = WordTokenizer(self.vocabulary)
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(plan.seed)
        assert isinstance(self.spec.vae, BrookVAEConfig)
        self.vae = BrookVAE(self.spec.vae).to(device)
        self.pair = new_pair(self.spec, len(self.vocabulary)).to(device)
        self.classifier = ClipClassifier().to(device)
        with torch.random.fork_rng(devices=[]):  # what is drawn next is the same without this judge
            self.motion_judge = MotionJudge().to(device)
        self.student: TextAndDiT | None = None
        self._rendered: tuple[LatentPool, PixelPool] | None = None
        self._short: PixelPool | None = None
        self._names = list[str]()
        """Parts of what is rendered, in order."""

    def train(
        self,
        report: Report,
        show: Show | None = None,
        *,
        until: str | None = None,
        on_asked: Callable[[], None] = lambda: None,
    ) -> None:
        """Train all stages in order, or up to one. Sheets of pictures are made only if they are shown.
        `on_asked` as in `train_stage`."""
        for stage in self.plan.stages:
            done = self.folder / f"{stage.name}-average.pt"
            if not done.exists():
                with self._timed(stage.name):
                    self._train(stage, done, report, show, on_asked)
            self.share.wait()  # until it is written
            self._adopt(stage, read_checkpoint(done))
            if stage.name == until:
                return

    def export(self, path: Path, card: dict[str, object]) -> None:
        final = self.student or self.pair
        parts = BrookParts(final.dit, self.vae, final.text, final.injectors)
        save_bundle(path, parts, self.vocabulary, card, torch.float16)
        save_classifier(path.with_name("classifier.safetensors"), self.classifier)
        if self.plan.pool.motion_walks:
            save_motion_judge(path.with_name("motion.safetensors"), self.motion_judge)
        shutil.rmtree(self.folder / RENDERED, ignore_errors=True)

    def _train(
        self, stage: StagePlan, done: Path, report: Report, show: Show | None, on_asked: Callable[[], None]
    ) -> None:
        training = self._training(stage)

        def picture(step: int, average: nn.Module) -> None:
            if show is not None and stage.method not in ("classify", "motion"):
                show(stage.name, step, self._sheet(average))

        average = train_stage(
            stage,
            training,
            self.folder,
            device=self.device,
            report=lambda said: report(stage.name, said),
            checkpoint_every=self.plan.checkpoint_every,
            at_checkpoint=picture,
            on_asked=on_asked,
            share=self.share,
        )
        if not self.share.is_first:
            return
        if isinstance(average, BrookVAE):
            generator = torch.Generator(self.device).manual_seed(self.plan.seed)
            measure_latents(average, self._clips(), batch=stage.batch, batches=8, generator=generator)
        with Staging(self.folder) as staging:
            torch.save(average.state_dict(), staging.path(done.name))

    def _training(self, stage: StagePlan) -> Training:
        batch = stage.batch
        share = self.share
        if stage.method in ("vae", "classify", "motion", "flow"):
            method: Method
            if stage.method == "vae":
                method = VAEMethod(
                    self.vae, self._clips(), batch=batch, options=stage.choose(VAEOptions), share=share
                )
            elif stage.method == "classify":
                method = ClassifyMethod(self.classifier, self.thumbnails, batch=batch, share=share)
            elif stage.method == "motion":
                method = MotionMethod(self.motion_judge, self._motion_pool(), batch=batch, share=share)
            else:
                flow = stage.choose(FlowOptions)
                compiled = self.plan.compiled
                method = FlowMethod(
                    self.pair, self.latents, batch=batch, options=flow, compiled=compiled, share=share
                )
            return TurnTraining(method, stage, seed=self.plan.seed, device=self.device, share=share)
        options = stage.choose(OPTIONS[stage.method])
        favoured = ""
        by = 1.0
        if isinstance(options, SelfForcingOptions):
            favoured = options.favoured
            by = options.favoured_by
        return PoolTraining(
            (self.student or self.pair).dit,
            self.pair,
            self.latents,
            stage,
            options,
            levels=self._levels,
            seed=self.plan.seed,
            favoured=self._word_ids(favoured),
            favoured_by=by,
            compiled=self.plan.compiled and stage.method == "self_forcing",
            share=share,
        )

    def _word_ids(self, words: str) -> list[int]:
        if unknown := self.tokenizer.read(words).unknown:
            raise ConfigError(
                f"no caption says {', '.join(unknown)}; favour words that `millstream train data world` "
                "counts"
            )
        return self.tokenizer.ids(words, len(words))

    def _sheet(self, average: nn.Module) -> np.ndarray:
        """Return a sheet of what a stage's averaged module makes of the same few scenes each time."""
        scenes = sample_scenes(SHOWN, seed=self.plan.seed, device=self.device)
        size = self.plan.pool.size
        if isinstance(average, BrookVAE):
            return reconstructions(average, render(scenes, frames=5, size=(size, size)))
        assert isinstance(self.spec.text, BrookTextConfig)
        ids = padded(self.tokenizer, canonical_captions(scenes), self.spec.text.tokens).to(self.device)
        latent_size = (size // SPATIAL_STRIDE, size // SPATIAL_STRIDE)
        window = self.spec.stream.window
        if isinstance(average, TextAndDiT):
            return taught_streams(average, self.vae, ids, latent_size, window=window)
        assert isinstance(average, CausalDiT)
        pair = TextAndDiT(self.pair.text, average)
        return student_streams(pair, self.vae, ids, latent_size, window=window, levels=self._levels)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        """Add a line to the run's ledger: where the time went, over all the processes a run may take."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            if self.share.is_first:
                spent = {
                    "what": what,
                    "seconds": round(time.perf_counter() - begun, 2),
                    "ranks": self.share.ranks,
                }
                with (self.folder / "ledger.jsonl").open("a") as ledger:
                    ledger.write(json.dumps(spent) + "\n")

    @property
    def _levels(self) -> tuple[float, ...]:
        stream = self.spec.stream
        return stream.noise_levels(stream.steps)

    def _adopt(self, stage: StagePlan, weights: dict[str, Tensor]) -> None:
        if stage.method == "vae":
            self.vae.load_state_dict(weights)
            self.vae.requires_grad_(False).eval()
        elif stage.method == "classify":
            self.classifier.load_state_dict(weights)
        elif stage.method == "motion":
            self.motion_judge.load_state_dict(weights)
        elif stage.method == "flow":
            self.pair.load_state_dict(weights)
        else:
            self.student = copy.deepcopy(self.pair)
            self.student.dit.load_state_dict(weights)
            self.student.dit.requires_grad_(True)

    def _clips(self) -> PixelPool:
        if self._short is None:
            with self._timed("rendering for the VAE"):
                self._short = render_clips(self.plan, self.device)
        return self._short

    def _motion_pool(self) -> MotionPool:
        with self._timed("rendering for the judge of motion"):
            return render_motion(self.plan.pool.motion_walks, self.plan.pool.walk_batch, self.device)

    @property
    def latents(self) -> LatentPool:
        """From the run's folder if an earlier process rendered them."""
        path = self.folder / "latents.pt"
        if self._rendered is None and path.exists():
            return LatentPool(**{name: kept.to(self.device) for name, kept in read_checkpoint(path).items()})
        pool = self._pools()[0]
        if self.share.is_first and not path.exists():
            with Staging(self.folder) as staging:
                kept = {field.name: getattr(pool, field.name) for field in dataclasses.fields(pool)}
                torch.save(
                    {name: tensor for name, tensor in kept.items() if tensor is not None},
                    staging.path(path.name),
                )
        return pool

    @property
    def thumbnails(self) -> PixelPool:
        return self._pools()[1]

    def _pools(self) -> tuple[LatentPool, PixelPool]:
        """Rendered when first needed, with the VAE as it then is."""
        if self._rendered is None:
            rendering = PoolRendering(
                plan=self.plan, vae=self.vae, tokenizer=self.tokenizer, spec=self.spec, device=self.device
            )
            self._names = []
            whole = self.folder / RENDERED / WHOLE
            if whole.exists():
                with self._timed("rendering"):
                    parts = [self._part(name, _never) for name in json.loads(whole.read_text())]
                self._rendered = joined(parts)
                return self._rendered
            with self._timed("rendering"):
                parts = list(rendering.scenes(self._part))
            if self.plan.pool.has_walks:
                with self._timed("rendering of walks"):
                    parts += list(rendering.walks(self._part))
            if self.share.is_first:
                write_whole(whole, json.dumps(self._names))
            self._rendered = joined(parts)
        return self._rendered

    def _part(self, name: str, make: Callable[[], Part]) -> Part:
        """From the run's folder if an earlier process rendered it."""
        self._names.append(name)
        folder = self.folder / RENDERED
        path = folder / f"{name}.pt"
        if path.exists():
            return {key: tensor.to(self.device) for key, tensor in read_checkpoint(path).items()}
        part = make()
        if self.share.is_first:
            folder.mkdir(exist_ok=True)
            with Staging(folder) as staging:
                torch.save(part, staging.path(path.name))
        return part


def _never() -> Part:
    raise ConfigError("a rendered part of the run is gone; remove its folder `rendered` to render all again")


def new_pair(spec: ModelSpec, num_words: int = len(WORDS)) -> TextAndDiT:
    """An untrained text encoder and DiT, with outputs that start at zero."""
    assert isinstance(spec.text, BrookTextConfig)
    text = BrookText(dataclasses.replace(spec.text, vocabulary=num_words))
    pair = TextAndDiT(text, CausalDiT(spec.dit), Injectors(spec.conditions, spec.dit))
    for layer in (pair.dit.head.proj, *(block.cross_attn.o for block in pair.dit.blocks)):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return pair
