"""Streams of a run with its weights as they are, by the engine that serves: the same prompts and seeds each
time.

An engine is made each time and released again, so that training has the memory in between. It streams once
before the first step, to show where the run begins. What cannot be streamed (a folder without a VAE) is
reported before anything is trained.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from millstream.core.config import BrookVAEConfig
from millstream.core.engine_config import EngineConfig
from millstream.engine.engine import Engine
from millstream.train.data.preview import tile
from millstream.train.export import dit_weights, export
from millstream.train.finetune.dataset import ClipSet
from millstream.train.finetune.recipe import TuningRecipe
from millstream.train.finetune.run import TuningRun
from millstream.video.writer import VideoWriter

SAMPLES = "samples"
CHUNKS = 4
MOMENTS = 6
"""Moments of a stream whose pictures are on the sheet."""


class SampledStreams(NamedTuple):
    clips: list[Path]
    prompts: list[str]
    sheet_HW3: np.ndarray
    """A row a stream."""
    unknown: list[str]
    """Words of the prompts that the model reads over."""


def sample_prompts(recipe: TuningRecipe, clips: ClipSet) -> list[str]:
    """One a stream: the recipe's, or captions of the clips, from the first again where there are too few."""
    known = list(recipe.sample_prompts) or list(dict.fromkeys(clip.caption for clip in clips.clips))
    count = recipe.samples or len(recipe.sample_prompts)
    return [known[number % len(known)] for number in range(count)]


def sample_streams(
    run: TuningRun, prompts: Sequence[str], step: int, learnt: Mapping[str, Tensor]
) -> SampledStreams:
    """Written to `samples/step-000100/0.mp4` and on."""
    engine = _engine(run, learnt)
    config = _stream_config(run)
    folder = run.folder / SAMPLES / f"step-{step:06d}"
    rows = list[np.ndarray]()
    paths = list[Path]()
    for number, prompt in enumerate(prompts):
        session = engine.session(prompt, config=engine.stream_config(seed=number, **config))
        frames = np.concatenate([chunk.frames for chunk in session.stream(CHUNKS)])
        rows.append(frames[np.linspace(0, len(frames) - 1, MOMENTS).round().astype(int)])
        paths.append(folder / f"{number}.mp4")
        with VideoWriter(paths[-1], fps=session.config.fps, overwrite=True) as writer:
            writer.write(frames)
    read = engine.model.text.embedder.read
    unknown = dict.fromkeys(word for prompt in prompts for word in read(prompt).unknown)
    engine.close()
    del engine
    if run.device.type == "cuda":
        torch.cuda.empty_cache()
    return SampledStreams(paths, list(prompts), tile(torch.from_numpy(np.stack(rows))).numpy(), list(unknown))


def _engine(run: TuningRun, learnt: Mapping[str, Tensor]) -> Engine:
    recipe = run.recipe
    config = EngineConfig(
        model=recipe.model,
        weights=recipe.weights,
        device=str(run.device),
        offload_text=not isinstance(run.spec.vae, BrookVAEConfig),
    )
    if recipe.lora is None:
        engine = Engine(config)
        engine.model.dit.load_state_dict(dit_weights(learnt))
        return engine
    with tempfile.TemporaryDirectory() as made:
        path = export(recipe, run.spec, Path(made), dit_weights(learnt))
        return Engine(replace(config, loras=((str(path), 1.0),)))


def _stream_config(run: TuningRun) -> dict[str, Any]:
    """As it is trained, and in the size that most clips have."""
    buckets = run.clips.buckets
    recipe = run.recipe
    height, width = max(buckets, key=lambda size: len(buckets[size]))
    changed = {"frames_per_chunk": recipe.frames_per_chunk, "window": recipe.window}
    return {"height": height, "width": width} | {name: value for name, value in changed.items() if value}
