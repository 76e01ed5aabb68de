"""Adherence of streams to their prompts, over time. Captions of scenes become prompts, and the streams are
judged against renders of the same scenes at the same moment, and against what the VAE makes of those.

Knows no files and prints nothing. Of a scene with two things either may be the one recognised.
Shapes: B clips, T frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from millstream.core.config import StreamConfig
from millstream.models.registry import LoadedModel
from millstream.ops.pixels import to_bytes
from millstream.train.data.captions import canonical_captions
from millstream.train.data.render import render
from millstream.train.data.scene import Scenes, attributes, sample_scenes, shown
from millstream.train.data.vocabulary import CLASSES
from millstream.train.evaluate.classifier import AttributeNet
from millstream.train.evaluate.metrics import (
    Impression,
    accuracy,
    by_class,
    frechet,
    impression,
    joined,
    mean,
    relative,
    wilson,
)
from millstream.train.evaluate.streams import (
    DECODED,
    BatchStream,
    Moment,
    Tick,
    chunks_until,
    moments,
    row_groups,
)

SEED = 424242
"""Seed of the scenes whose captions are the prompts: far from any that training uses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Judgement of one set of prompts at one moment. Everything is relative to what the same scenes give when
    rendered."""

    second: float
    adherence: dict[str, float]
    """Share of clips in which an attribute is recognised, relative to the share in the renders."""
    mean: float
    interval: tuple[float, float]
    """95% interval of the share recognised over all attributes, as if all attributes of a clip stood and fell
    together: never too narrow."""
    lost: float
    """Largest loss of any attribute since the first moment."""
    distance: float
    """Fréchet distance to the renders' features."""
    edges: float
    """Crispness, relative to the VAE's reconstructions."""
    flicker: float
    """Flicker, relative to the VAE's reconstructions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adherence:
    """Judgements of one set of prompts, as its streams go on."""

    prompts: str
    clips: int
    first_edges: float
    """Crispness of the first chunk, relative to the VAE's reconstruction of the same frames."""
    real: dict[str, float]
    """Share of the renders in which the judge recognises an attribute, at the first moment."""
    by_class: dict[str, dict[str, dict[str, float]]]
    """Share in which it recognises each attribute in the streams of one class of scene (by attribute and
    class), also at the first moment."""
    moments: tuple[Judgement, ...]


class Triple(NamedTuple):
    """Impressions of the same scenes, three times: streamed, rendered, and rendered and passed through the
    VAE."""

    streamed: Impression
    rendered: Impression
    rebuilt: Impression


def judge_prompts(
    model: LoadedModel,
    judge: AttributeNet,
    *,
    config: StreamConfig,
    held_out: bool,
    count: int,
    seconds: Sequence[float],
    reference: LoadedModel | None = None,
    tick: Tick = lambda: None,
) -> Adherence:
    """Stream `count` captions, of combinations that training saw or of held-out ones, and judge them at
    `seconds`. `reference` is whose VAE's reconstructions they are held against, if not the model's own; the
    judge is on its device."""
    reference = reference or model
    scenes = sample_scenes(count, seed=SEED, held_out=held_out, device=reference.device)
    seen: dict[float, list[Triple]] = {second: [] for second in (0.0, *seconds)}
    for rows in row_groups(count, model.device):
        stream = BatchStream(
            model, canonical_captions(scenes[rows]), range(rows.start, rows.stop), config=config
        )
        for second, triple in _watch(stream, reference, judge, scenes[rows], seconds, tick):
            seen[second].append(triple)
    whole = {second: Triple(*map(joined, zip(*parts, strict=True))) for second, parts in seen.items()}
    start = whole.pop(0.0)
    wanted = shown(scenes)
    return Adherence(
        prompts="held out" if held_out else "seen",
        clips=count,
        first_edges=_ratio(start.streamed.edges, start.rebuilt.edges),
        real=accuracy(whole[seconds[0]].rendered.named, wanted),
        by_class=by_class(whole[seconds[0]].streamed.named, wanted, attributes(scenes), CLASSES),
        moments=tuple(_judgements(whole, wanted)),
    )


def adherence_ticks(count: int, last: float, config: StreamConfig, device: torch.device) -> int:
    """Return how often `judge_prompts` will tick."""
    return len(row_groups(count, device)) * chunks_until(last, config)


def _watch(
    stream: BatchStream,
    reference: LoadedModel,
    judge: AttributeNet,
    scenes: Scenes,
    seconds: Sequence[float],
    tick: Tick,
) -> Iterator[tuple[float, Triple]]:
    """Yield the impressions of a batch at each moment, with its second."""
    for moment in moments(stream, seconds, tick):
        rendered, rebuilt = _references(reference, scenes, moment)
        sides = (
            impression(judge, pixels)
            for pixels in (moment.pixels_BTCYX.to(reference.device), rendered, rebuilt)
        )
        yield moment.second, Triple(*sides)


@torch.inference_mode()
def _references(model: LoadedModel, scenes: Scenes, moment: Moment) -> tuple[Tensor, Tensor]:
    """Return the scenes at that moment as bytes, as rendered and as the VAE reconstructs them."""
    _, frames, _, *size = moment.pixels_BTCYX.shape
    rendered = []
    rebuilt = []
    for i in range(0, len(scenes), DECODED):
        pixels = render(scenes[i : i + DECODED], start=moment.start, frames=frames, size=(size[0], size[1]))
        rendered.append(to_bytes(pixels))
        latents, _ = model.vae.encode(pixels.to(model.dtype))
        rebuilt.append(to_bytes(model.vae.decode(latents)[0]))
    return torch.cat(rendered), torch.cat(rebuilt)


def _judgements(moments: Mapping[float, Triple], wanted: Mapping[str, Tensor]) -> Iterator[Judgement]:
    before: dict[str, float] | None = None
    for second, triple in moments.items():
        found, real = (accuracy(side.named, wanted) for side in (triple.streamed, triple.rendered))
        clips = len(triple.streamed.edges)
        adherence = relative(found, real, clips)
        before = before or adherence
        low, high = (bound / max(mean(real), 1 / clips) for bound in wilson(mean(found), clips))
        yield Judgement(
            second=second,
            adherence=adherence,
            mean=mean(adherence),
            interval=(low, high),
            lost=max(before[name] - adherence[name] for name in adherence),
            distance=frechet(triple.streamed.features_BD, triple.rendered.features_BD),
            edges=_ratio(triple.streamed.edges, triple.rebuilt.edges),
            flicker=_ratio(triple.streamed.flicker, triple.rebuilt.flicker),
        )


def _ratio(found: Tensor, expected: Tensor) -> float:
    return float(found.mean() / expected.mean())
