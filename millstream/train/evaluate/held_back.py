"""Judge that training by reward never sees: another seed, another architecture, and renders of another size.

A model that was tuned to please one classifier may have learnt that classifier's mistakes; this one has
others.
Shapes: K clips, T frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from millstream.core.errors import ConfigError
from millstream.core.files import Staging
from millstream.ops.pixels import to_bytes
from millstream.train.data.render import render
from millstream.train.data.scene import Scenes, attributes, sample_scenes, shown
from millstream.train.evaluate.classifier import ARCHITECTURES, FRAMES, AttributeNet, save_classifier, thinned
from millstream.train.evaluate.metrics import accuracy, impression, joined
from millstream.train.loop import StepReport, TurnTraining, train_stage
from millstream.train.methods.classify import ClassifyMethod
from millstream.train.plan import StagePlan
from millstream.train.pool import PixelPool

SEED = 7_654_321
"""Seed of its scenes and weights: far from those of `millstream train brook`."""
MINUTE = 16 * 60
RENDERED = 32
"""Clips rendered at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeTraining:
    clips: int = 12000
    steps: int = 6000
    batch: int = 64
    lr: float = 2e-3
    seed: int = SEED
    size: int = 192
    """Size of its renders: another than the model streams in, so that edges and grain are others."""
    architecture: str = "held back"
    """Name in `ARCHITECTURES`: the judge's own, or, for a second opinion that rewards, that of the bundled
    classifier."""
    examined: int = 256
    """Number of clips of scenes it has not learnt from, to measure how good it is."""

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES or self.size < 16 or self.size % 16:
            raise ConfigError(
                f"an architecture is one of {', '.join(ARCHITECTURES)} and a size a multiple of 16, "
                f"got {self.architecture!r} and {self.size}"
            )
        if min(self.clips, self.steps, self.batch, self.examined) < 1:
            raise ConfigError(
                f"give 1 or more clips, steps and batch, got {self.clips}, {self.steps} and {self.batch}"
            )


def train_judge(
    plan: JudgeTraining,
    looks: PixelPool,
    folder: Path,
    device: torch.device,
    report: Callable[[StepReport], None],
    on_asked: Callable[[], None] = lambda: None,
) -> tuple[Path, dict[str, float]]:
    """From what `render_looks` made of the plan: the file that was written, and the share of unseen renders
    whose attributes it names. A run that was begun goes on. `on_asked` as `train_stage` has it."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(plan.seed)
    judge = ARCHITECTURES[plan.architecture]().to(device)
    stage = StagePlan(name="judge", method="classify", steps=plan.steps, batch=plan.batch, lr=plan.lr)
    training = TurnTraining(
        ClassifyMethod(judge, looks, batch=plan.batch), stage, seed=plan.seed, device=device
    )
    learnt = train_stage(stage, training, folder, device=device, report=report, on_asked=on_asked)
    assert isinstance(learnt, AttributeNet)
    path = folder / "judge.safetensors"
    with Staging(folder) as staging:
        save_classifier(staging.path(path.name), learnt)
    return path, examine(learnt, plan.examined, seed=plan.seed + 1, size=plan.size, device=device)


@torch.no_grad()
def render_looks(
    plan: JudgeTraining, device: torch.device, tick: Callable[[], None] = lambda: None
) -> PixelPool:
    """Labelled clips as a judge looks at them, [K, 9, 3, 128, 128] in bytes. `tick` is called `render_ticks`
    times."""
    scenes = sample_scenes(plan.clips, seed=plan.seed, device=device)
    looks = list[Tensor]()
    for pixels in _rendered(scenes, plan.seed, plan.size):
        looks.append(to_bytes(thinned(pixels)))
        tick()
    return PixelPool(pixels_KTCYX=torch.cat(looks), labels=attributes(scenes))


def render_ticks(plan: JudgeTraining) -> int:
    return len(range(0, plan.clips, RENDERED))


@torch.no_grad()
def examine(
    judge: AttributeNet, clips: int, *, seed: int, size: int, device: torch.device
) -> dict[str, float]:
    """The share of renders of other scenes whose attributes it names."""
    scenes = sample_scenes(clips, seed=seed, device=device)
    seen = joined([impression(judge, to_bytes(pixels)) for pixels in _rendered(scenes, seed, size)])
    return accuracy(seen.named, shown(scenes))


def _rendered(scenes: Scenes, seed: int, size: int) -> Iterator[Tensor]:
    """Two seconds of each, some at a time; those of one batch begin together, anywhere in a scene's first
    minute."""
    for first in range(0, len(scenes), RENDERED):
        few = scenes[first : first + RENDERED]
        yield render(few, start=(seed + first) * 37 % MINUTE, frames=FRAMES, size=(size, size))
