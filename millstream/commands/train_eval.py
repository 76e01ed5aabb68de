"""`millstream train eval`: streams of a trained Brook, judged by the classifier that learnt from renders alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from millstream.core.errors import ConfigError
from millstream.ops.pixels import from_bytes
from millstream.runtime.engine import Engine
from millstream.trainer.data.captions import canonical_captions
from millstream.trainer.data.render import render
from millstream.trainer.data.scene import Scenes, attributes, sample_scenes
from millstream.trainer.evaluate.classifier import CLASSES, FRAMES, ClipClassifier, load_classifier, thinned
from millstream.trainer.evaluate.metrics import accuracy, edge_strength, flicker, frechet, relative

SEED = 424242
"""Of the scenes whose captions are the prompts: far from any that training uses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """One set of prompts at one moment."""

    prompts: str
    second: float
    adherence: dict[str, float]
    """Relative to what the classifier makes of renders of the same scenes."""
    mean: float
    distance: float
    edges: float
    """Crispness, relative to the renders'."""
    flicker: float


def run_train_eval(
    *, weights: str, classifier: Path, count: int, seconds: list[float], device: str, out: Path | None
) -> list[Judgement]:
    if count < 2 or not seconds or min(seconds) * 16 < FRAMES - 1:
        raise ConfigError(f"give at least 2 prompts and seconds of {(FRAMES - 1) / 16:g} or more")
    engine = Engine("brook", weights=weights, device=device)
    judge = load_classifier(classifier, engine.device)
    found = [
        judgement
        for name, held_out in (("seen", False), ("held out", True))
        for judgement in _judge(engine, judge, sample_scenes(count, seed=SEED, held_out=held_out), name, sorted(seconds))
    ]
    Console().print(_table(found))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps([asdict(judgement) for judgement in found], indent=2) + "\n")
    return found


def _judge(engine: Engine, judge: ClipClassifier, scenes: Scenes, name: str, seconds: list[float]) -> Iterator[Judgement]:
    labels = attributes(scenes)
    size = engine.spec.stream.height, engine.spec.stream.width
    real = torch.cat([render(scenes[i : i + 1], frames=FRAMES, size=size) for i in range(len(scenes))]).to(engine.device)
    real_accuracy, real_features, real_edges = accuracy(judge, real, labels), judge.features(thinned(real)), edge_strength(real)
    moments: dict[float, list[Tensor]] = {second: [] for second in seconds}
    prompts = canonical_captions(scenes)
    for number, prompt in enumerate(track(prompts, description=name, console=Console(stderr=True))):
        for second, clip in _windows(engine, prompt, number, seconds):
            moments[second].append(clip)
    for second, clips in moments.items():
        pixels = torch.stack(clips).to(engine.device)
        adherence = relative(accuracy(judge, pixels, labels), real_accuracy)
        yield Judgement(
            prompts=name,
            second=second,
            adherence=adherence,
            mean=sum(adherence.values()) / len(adherence),
            distance=frechet(judge.features(thinned(pixels)), real_features),
            edges=edge_strength(pixels) / real_edges,
            flicker=flicker(pixels),
        )


def _windows(engine: Engine, prompt: str, seed: int, seconds: list[float]) -> Iterator[tuple[float, Tensor]]:
    """The two seconds before each moment of a stream, as pixels in [-1, 1]."""
    recent = np.zeros((0, 1, 1, 3), np.uint8)
    waiting, shown = list(seconds), 0
    with engine.session(prompt, seed=seed) as session:
        for chunk in session.stream():
            recent = np.concatenate([recent, chunk.frames])[-FRAMES:] if len(recent) else chunk.frames
            shown += len(chunk.frames)
            while waiting and shown >= max(FRAMES, waiting[0] * session.config.fps):
                yield waiting.pop(0), from_bytes(torch.from_numpy(recent).permute(0, 3, 1, 2))
            if not waiting:
                return


def _table(found: list[Judgement]) -> Table:
    table = Table("prompts", "second", "mean", *CLASSES, "distance", "edges", "flicker", title="adherence relative to renders")
    for j in found:
        shares = [f"{j.adherence[name]:.2f}" for name in CLASSES]
        table.add_row(
            j.prompts, f"{j.second:g}", f"{j.mean:.3f}", *shares, f"{j.distance:.1f}", f"{j.edges:.2f}", f"{j.flicker:.4f}"
        )
    return table
