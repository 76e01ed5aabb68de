"""The judge and how it is taught: what a glimpse shows, and that motion is never asked of one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from millstream.core.errors import WeightsError
from millstream.ops.pixels import to_bytes
from millstream.train.data.render import render
from millstream.train.data.scene import attributes, sample_scenes
from millstream.train.data.vocabulary import CLASSES
from millstream.train.evaluate.classifier import (
    FRAMES,
    GLIMPSED,
    ClipClassifier,
    glimpsed,
    load_classifier,
    thinned,
)
from millstream.train.methods.classify import ClassifyMethod, glimpses
from millstream.train.pool import PixelPool

pytestmark = pytest.mark.slow


def numbered(frames: int) -> Tensor:
    """Clips [2, T, 3, 128, 128] whose frames are as bright as their number."""
    return torch.arange(float(frames)).view(1, -1, 1, 1, 1).expand(2, -1, 3, 128, 128)


def pool(clips: int = 10) -> PixelPool:
    scenes = sample_scenes(clips, seed=5)
    looks = thinned(render(scenes, frames=FRAMES, size=(64, 64)))
    return PixelPool(pixels_KTCYX=to_bytes(looks), labels=attributes(scenes))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("frames", [9, 12])
def test_a_glimpse_is_three_frames_of_a_chunk_each_three_times(frames: int) -> None:
    assert glimpsed(numbered(frames))[1, :, 0, 0, 0].tolist() == [0, 0, 0, 4, 4, 4, 8, 8, 8]


@pytest.mark.parametrize("size", [(256, 256), (384, 128), (64, 128), (256, 64), (96, 160)])
def test_a_look_has_the_mean_of_each_area(size: tuple[int, int]) -> None:
    pixels = torch.rand(1, 1, 3, *size)
    assert torch.equal(thinned(pixels)[0], nn.functional.interpolate(pixels[0], size=(128, 128), mode="area"))


def test_a_taught_glimpse_is_three_neighbours_of_a_look_each_three_times() -> None:
    shown = glimpses(numbered(9).repeat(32, 1, 1, 1, 1), generator())[:, :, 0, 0, 0]
    first = shown[:, :1]
    assert torch.equal(shown, first + torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]))
    assert set(first.flatten().tolist()) == set(range(7)), "from anywhere in it"


class WrongAboutGlimpses(nn.Module):
    """Names attributes rightly in a look and wrongly in a glimpse, which it tells by its repeated frames."""

    def forward(self, pixels_BTCYX: Tensor) -> dict[str, Tensor]:
        self.glimpses = (pixels_BTCYX[:, 0] == pixels_BTCYX[:, 1]).flatten(1).all(dim=1)
        right = torch.where(self.glimpses, -100.0, 100.0)
        scores = torch.stack([right, torch.zeros_like(right)], dim=1)
        return dict.fromkeys(CLASSES, scores)


def test_motion_is_not_asked_of_a_glimpse() -> None:
    looks = to_bytes(numbered(9)[:, :, :, :8, :8] / 4 - 1)
    labels = {name: torch.zeros(2, dtype=torch.int64) for name in CLASSES}
    judge = WrongAboutGlimpses()
    (turn,) = ClassifyMethod(judge, PixelPool(pixels_KTCYX=looks, labels=labels), batch=10).turns
    losses = turn.losses(generator())
    assert judge.glimpses.sum() == 3, "three tenths of the batch"
    assert losses["motion"] < 1e-3
    assert all(losses[name] > 1 for name in GLIMPSED)
    assert set(losses) == {*GLIMPSED, "motion"}


def test_the_judge_learns_what_it_is_shown() -> None:
    torch.manual_seed(0)
    judge = ClipClassifier(width=8)
    (turn,) = ClassifyMethod(judge, pool(4), batch=4).turns
    optimiser = torch.optim.Adam(judge.parameters(), lr=3e-3)
    history = []
    lots = generator()
    for _ in range(12):
        loss = sum(turn.losses(lots).values())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        history.append(float(loss.detach()))
    assert history[-1] < 0.7 * history[0]


def test_a_file_that_is_no_judge_is_refused(tmp_path: Path) -> None:
    (tmp_path / "judge.safetensors").write_bytes(b"nothing")
    with pytest.raises(WeightsError, match="train one"):
        load_classifier(tmp_path / "judge.safetensors", torch.device("cpu"))
