"""Classifier of clips: one small network that recognises setting, time, weather, thing, colour and motion.

Looks at two seconds, frames thinned out and shrunk, each through a small convolutional stack, then together
in time; or glimpses a single chunk, whose frames it is shown slowly: too little to tell a motion by.
Shapes: B batch, T frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.errors import WeightsError
from millstream.train.data.vocabulary import CLASSES

JUDGE = Path(__file__).parent / "classifier.safetensors"
"""Weights of the classifier that was trained with the bundled Brook."""
FRAMES = 33
"""Frames of a look: two seconds and one frame."""
EVERY = 4
"""Distance of the frames that it looks at: every fourth."""
SIZE = 128
GLIMPSE = 3
"""Frames of a glimpse, each shown as many times: as long as a look."""
GLIMPSED = tuple(name for name in CLASSES if name != "motion")
"""Attributes that a glimpse can recognise."""
JUDGE_QUERIES = 2
"""Queries of the held-back judge: places and moments that it looks at closely."""


class AttributeNet(nn.Module):
    """Base of every judge: features of a look, and a head for each attribute."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.heads = nn.ModuleDict(
            {name: nn.Linear(num_features, len(classes)) for name, classes in CLASSES.items()}
        )

    def forward(self, pixels_BTCYX: Tensor) -> dict[str, Tensor]:
        """Return scores per attribute of clips as `thinned` makes them."""
        features = self.features(pixels_BTCYX)
        return {name: head(features) for name, head in self.heads.items()}

    def features(self, pixels_BTCYX: Tensor) -> Tensor:
        """[B, features]"""
        raise NotImplementedError


class ClipClassifier(AttributeNet):
    """Bundled classifier: looks at frames one by one, then together in time."""

    def __init__(self, width: int = 32) -> None:
        super().__init__(num_features=2 * 4 * width)
        widths = (3, width, 2 * width, 3 * width, 4 * width)
        self.frames = nn.ModuleList(
            nn.Conv2d(i, o, 3, stride=2, padding=1) for i, o in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(8, o) for o in widths[1:])
        top = widths[-1]
        self.time = nn.ModuleList(nn.Conv3d(top, top, 3, padding=1) for _ in range(2))
        self.time_norms = nn.ModuleList(nn.GroupNorm(8, top) for _ in range(2))

    def features(self, pixels_BTCYX: Tensor) -> Tensor:
        """[B, features]: the mean and the maximum over the clip."""
        batch = pixels_BTCYX.shape[0]
        x = pixels_BTCYX.flatten(0, 1)
        for conv, norm in zip(self.frames, self.norms, strict=True):
            x = F.silu(norm(conv(x)))
        x = x.unflatten(0, (batch, -1)).transpose(1, 2)
        for conv, norm in zip(self.time, self.time_norms, strict=True):
            x = x + F.silu(norm(conv(x)))
        return torch.cat([x.mean(dim=(2, 3, 4)), x.amax(dim=(2, 3, 4))], dim=1)


def thinned(pixels_BTCYX: Tensor) -> Tensor:
    """Two seconds as the classifier looks at them: nine frames at 128x128."""
    return _shrunk(pixels_BTCYX[:, :FRAMES:EVERY])


def glimpsed(pixels_BTCYX: Tensor) -> Tensor:
    """One chunk as the classifier looks at it: three frames at 128x128, each three times."""
    return slowed(_shrunk(pixels_BTCYX[:, : GLIMPSE * EVERY : EVERY]))


def slowed(looks_BTCYX: Tensor) -> Tensor:
    """Three frames of a look, each shown three times."""
    assert looks_BTCYX.shape[1] == GLIMPSE, f"a glimpse has {GLIMPSE} frames, got {looks_BTCYX.shape[1]}"
    return looks_BTCYX.repeat_interleave(GLIMPSE, dim=1)


def _shrunk(pixels_BTCYX: Tensor) -> Tensor:
    """Each pixel the mean of an area. Where sizes divide, the same bits take a CPU a third of the time and
    less."""
    frames, (rows, columns) = pixels_BTCYX.flatten(0, 1), pixels_BTCYX.shape[-2:]
    if rows % SIZE == columns % SIZE == 0:
        frames = F.avg_pool2d(frames, (rows // SIZE, columns // SIZE))
    else:
        mode = "nearest-exact" if SIZE % rows == SIZE % columns == 0 else "area"
        frames = F.interpolate(frames, size=(SIZE, SIZE), mode=mode)
    return frames.view(*pixels_BTCYX.shape[:3], SIZE, SIZE)


class HeldBackJudge(AttributeNet):
    """Another architecture, for a judge that no reward has looked through: space and time in turns, all the
    way up, and a softmax over places and moments instead of their maximum."""

    def __init__(self, width: int = 48) -> None:
        super().__init__(num_features=(1 + JUDGE_QUERIES) * 3 * width)
        widths = (width, width, 2 * width, 3 * width)
        self.stem = nn.Conv3d(3, width, (1, 7, 7), stride=(1, 4, 4), padding=(0, 3, 3))
        self.grow = nn.ModuleList(
            nn.Conv3d(i, o, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1))
            for i, o in itertools.pairwise(widths)
        )
        self.space = nn.ModuleList(nn.Conv3d(w, w, (1, 3, 3), padding=(0, 1, 1)) for w in widths[1:])
        self.time = nn.ModuleList(nn.Conv3d(w, w, (3, 1, 1), padding=(1, 0, 0)) for w in widths[1:])
        self.norms = nn.ModuleList(nn.GroupNorm(8, w) for w in widths[1:] for _ in range(2))
        self.queries = nn.Conv3d(widths[-1], JUDGE_QUERIES, 1)

    def features(self, pixels_BTCYX: Tensor) -> Tensor:
        """The mean over the clip, and what each query attends to."""
        x = F.gelu(self.stem(pixels_BTCYX.transpose(1, 2)))
        norms = iter(self.norms)
        for grow, space, time in zip(self.grow, self.space, self.time, strict=True):
            x = grow(x)
            x = x + F.gelu(next(norms)(space(x)))
            x = x + F.gelu(next(norms)(time(x)))
        share_BQL = self.queries(x).flatten(2).softmax(dim=-1)
        x_BCL = x.flatten(2)
        return torch.cat(
            [x_BCL.mean(dim=2), torch.einsum("bql,bcl->bqc", share_BQL, x_BCL).flatten(1)], dim=1
        )


ARCHITECTURES: dict[str, type[ClipClassifier] | type[HeldBackJudge]] = {
    "convolutions": ClipClassifier,
    "held back": HeldBackJudge,
}
"""By the name that a file gives its own; the first where it gives none."""


def save_classifier(path: Path, classifier: AttributeNet) -> None:
    """Half precision is plenty for a judge."""
    tensors = {
        name: tensor.detach().cpu().half().contiguous() for name, tensor in classifier.state_dict().items()
    }
    (kind,) = (name for name, known in ARCHITECTURES.items() if type(classifier) is known)
    save_file(tensors, path, metadata={"architecture": kind})


def load_classifier(path: Path, device: torch.device) -> AttributeNet:
    try:
        with safe_open(path, framework="pt") as file:
            kind = (file.metadata() or {}).get("architecture", "convolutions")
        classifier = ARCHITECTURES[kind]()
        classifier.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        raise WeightsError(
            f"{path} is no classifier ({type(error).__name__}); train one: millstream train judge"
        ) from None
    return classifier.to(device).eval().requires_grad_(False)
