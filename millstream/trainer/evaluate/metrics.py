"""Numbers from generated clips: adherence, drift, distance, response, flicker. Knows no engine: it is handed pixels.

Shapes: B batch, T frames, C channels, Y and X rows and columns, D features.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from millstream.trainer.evaluate.classifier import ClipClassifier, thinned


@torch.no_grad()
def accuracy(classifier: ClipClassifier, pixels_BTCYX: Tensor, labels: Mapping[str, Tensor]) -> dict[str, float]:
    """Share of clips whose attribute is recognised."""
    scores = classifier(thinned(pixels_BTCYX))
    return {name: float((score.argmax(1) == labels[name].to(score.device)).float().mean()) for name, score in scores.items()}


def relative(found: Mapping[str, float], real: Mapping[str, float]) -> dict[str, float]:
    """What the classifier makes of generated clips, of what it makes of real ones."""
    return {name: found[name] / max(real[name], 1e-6) for name in found}


def frechet(first_BD: Tensor, second_BD: Tensor) -> float:
    """Fréchet distance between two sets of features taken as Gaussians."""
    first, second = first_BD.double().cpu(), second_BD.double().cpu()
    mean = (first.mean(0) - second.mean(0)).square().sum()
    one, two = torch.cov(first.T), torch.cov(second.T)
    eigenvalues = torch.linalg.eigvals(one @ two).real.clamp_min(0)
    return float(mean + one.trace() + two.trace() - 2 * eigenvalues.sqrt().sum())


def edge_strength(pixels_BTCYX: Tensor) -> float:
    """Mean size of the strongest hundredth of differences between neighbouring pixels: how crisp edges are."""
    step = pixels_BTCYX.diff(dim=-1).abs().amax(dim=2).flatten(1)
    count = max(1, step.shape[1] // 100)
    return float(step.topk(count, dim=1).values.mean())


def flicker(pixels_BTCYX: Tensor) -> float:
    """Mean absolute second difference in time: what moves evenly has none."""
    return float(pixels_BTCYX.diff(n=2, dim=1).abs().mean())
