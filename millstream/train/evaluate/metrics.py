"""Metrics of a judge's impressions and of pixels. Knows neither models nor scenes.

Shapes: B clips, T frames, C channels, Y and X rows and columns, D features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.ops.pixels import from_bytes
from millstream.train.evaluate.classifier import AttributeNet, thinned

LOOKED_AT = 16
"""Clips judged at once: as floats they are large."""
Z95 = 1.96
"""Standard deviations that 95 of 100 lie within."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Impression:
    """Impression of clips, one row each: a judge's classes and features, and how crisp and restless they
    are."""

    named: Mapping[str, Tensor]
    """Recognised class of each attribute [B]."""
    features_BD: Tensor
    edges: Tensor
    flicker: Tensor


@torch.inference_mode()
def impression(judge: AttributeNet, pixels_BTCYX: Tensor) -> Impression:
    """Return the impression of clips as bytes; all on the CPU, where it is small."""
    parts = []
    for part in pixels_BTCYX.split(LOOKED_AT):
        pixels = from_bytes(part)
        features = judge.features(thinned(pixels))
        named = {name: head(features).argmax(1).cpu() for name, head in judge.heads.items()}
        parts.append(
            Impression(
                named=named,
                features_BD=features.cpu(),
                edges=edge_strength(pixels).cpu(),
                flicker=flicker(pixels).cpu(),
            )
        )
    return joined(parts)


def joined(parts: Sequence[Impression]) -> Impression:
    return Impression(
        named={name: torch.cat([part.named[name] for part in parts]) for name in parts[0].named},
        features_BD=torch.cat([part.features_BD for part in parts]),
        edges=torch.cat([part.edges for part in parts]),
        flicker=torch.cat([part.flicker for part in parts]),
    )


def accuracy(named: Mapping[str, Tensor], shown: Mapping[str, Tensor]) -> dict[str, float]:
    """Share of clips where what the judge names is among what is shown [B, classes]."""
    return {name: float(is_shown(found, shown[name].cpu()).float().mean()) for name, found in named.items()}


def by_class(
    named: Mapping[str, Tensor],
    shown: Mapping[str, Tensor],
    scenes: Mapping[str, Tensor],
    classes: Mapping[str, Sequence[str]],
) -> dict[str, dict[str, dict[str, float]]]:
    """By attribute and class of the `scenes` (ids [B]), of those there are: the accuracy of every attribute
    among them."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for attribute, ids in scenes.items():
        rows = {name: (ids.cpu() == i).nonzero().flatten() for i, name in enumerate(classes[attribute])}
        found[attribute] = {
            name: accuracy(
                {key: of[few] for key, of in named.items()}, {key: of.cpu()[few] for key, of in shown.items()}
            )
            for name, few in rows.items()
            if len(few)
        }
    return found


def is_shown(named_B: Tensor, shown_BC: Tensor) -> Tensor:
    return shown_BC.gather(1, named_B[:, None]).squeeze(1)


def relative(found: Mapping[str, float], real: Mapping[str, float], clips: int) -> dict[str, float]:
    """Return the shares that the judge recognises in generated clips, divided by those in real ones, which
    count as at least one clip."""
    return {name: found[name] / max(real[name], 1 / clips) for name in found}


def mean(values: Mapping[str, float]) -> float:
    return sum(values.values()) / len(values)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95% interval for the true share, given a share of `count` trials."""
    assert count > 0, "no trial, no interval"
    assert 0 <= share <= 1, f"a share is 0 to 1, got {share}"
    spread = Z95**2 / count
    middle = share + spread / 2
    half = Z95 * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))


def frechet(first_BD: Tensor, second_BD: Tensor) -> float:
    """Return the Fréchet distance between two sets of features taken as Gaussians. Compare only figures of
    equally many clips."""
    first = first_BD.double().cpu()
    second = second_BD.double().cpu()
    apart = (first.mean(0) - second.mean(0)).square().sum()
    one = torch.cov(first.T)
    two = torch.cov(second.T)
    eigenvalues = torch.linalg.eigvals(one @ two).real.clamp_min(0)
    return float(apart + one.trace() + two.trace() - 2 * eigenvalues.sqrt().sum())


def edge_strength(pixels_BTCYX: Tensor) -> Tensor:
    """Return how crisp edges are [B]: mean size of the strongest hundredth of differences between
    neighbouring pixels."""
    step = pixels_BTCYX.diff(dim=-1).abs().amax(dim=2).flatten(1)
    count = max(1, step.shape[1] // 100)
    return step.topk(count, dim=1).values.mean(dim=1)


def flicker(pixels_BTCYX: Tensor) -> Tensor:
    """Return the mean absolute second difference in time [B]: small for even motion."""
    return pixels_BTCYX.diff(n=2, dim=1).abs().mean(dim=(1, 2, 3, 4))
