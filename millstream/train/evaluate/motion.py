"""Judge of motion: one small network that reads how a camera moved during each latent frame.

It looks at the frames of one latent frame and the one before them: neighbours show turns, and those further
apart show steps. What it reads is in units of a key that is held all the while, so that 1 is a key's worth. It
learns from walks that no Brook learns from.
Shapes: B clips or looks, T pixel frames, F latent frames, C channels, Y and X rows and columns, M motions.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.config import TEMPORAL_STRIDE, ActionsConfig
from millstream.core.errors import WeightsError
from millstream.models.conditions.actions import LOOK_UNIT
from millstream.ops.pixels import from_bytes, to_bytes
from millstream.train.data.render import FPS
from millstream.train.data.walk.clips import walk_clips
from millstream.train.data.walk.walker import LOOK_SPEED, TURN_SPEED, WALK_SPEED, Poses

MOTIONS = ("ahead", "aside", "turn", "tilt")
"""To the front, to the right, to the right and upwards."""
SECONDS = TEMPORAL_STRIDE / FPS
UNITS = (WALK_SPEED * SECONDS, WALK_SPEED * SECONDS, TURN_SPEED * SECONDS, LOOK_SPEED * SECONDS)
"""Metres and degrees that a key moves a walker by in one latent frame."""
LOOKED = TEMPORAL_STRIDE + 1
"""Frames of a look."""
SIZE = 96
CLIP = 1 + 8 * TEMPORAL_STRIDE
"""Frames of a walk that is learnt from."""
SEED = 5_150_515
"""Seed of the walks it learns from, which are held out too."""
READ_AT_ONCE = 256
"""Looks."""


class MotionJudge(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = (3 * LOOKED, width, 2 * width, 3 * width, 3 * width)
        self.convs = nn.ModuleList(
            nn.Conv2d(i, o, 5 if i == widths[0] else 3, stride=2, padding=2 if i == widths[0] else 1)
            for i, o in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(8, o) for o in widths[1:])
        places = (SIZE // 2 ** len(self.convs)) ** 2
        self.hidden = nn.Linear(
            places * widths[-1], 4 * width
        )  # where something moves tells steps from turns
        self.out = nn.Linear(4 * width, len(MOTIONS))

    def forward(self, looks_BTCYX: Tensor) -> Tensor:
        """Motions [B, M] of looks at `SIZE`."""
        x = looks_BTCYX.flatten(1, 2)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.silu(norm(conv(x)))
        found: Tensor = self.out(F.silu(self.hidden(x.flatten(1))))
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class MotionPool:
    """Walks as bytes at `SIZE`, and the motion of each of their latent frames but the first."""

    pixels_BTCYX: Tensor
    motions_BFM: Tensor


@torch.no_grad()
def render_motion(
    count: int, batch: int, device: torch.device, *, seed: int = SEED, frames: int = CLIP
) -> MotionPool:
    """Walks of held-out scenes on held-out tracks."""
    pixels = []
    motions = []
    for first in range(0, count, batch):
        clips = walk_clips(
            min(batch, count - first), seed=seed, frames=frames, size=(SIZE, SIZE), held_out=True,
            start=first, device=device,
        )  # fmt: skip
        pixels.append(to_bytes(clips.rendered.pixels))
        motions.append(moved(clips.poses))
    return MotionPool(pixels_BTCYX=torch.cat(pixels), motions_BFM=torch.cat(motions).to(device))


def moved(poses: Poses) -> Tensor:
    """Motion of every latent frame but the first [B, F, M], as the camera saw it at its beginning."""
    x, z, yaw, pitch = (part[:, ::TEMPORAL_STRIDE] for part in (poses.x, poses.z, poses.yaw, poses.pitch))
    angle = yaw[:, :-1].deg2rad()
    step_x = x.diff(dim=1)
    step_z = z.diff(dim=1)
    ahead = angle.sin() * step_x - angle.cos() * step_z
    aside = angle.cos() * step_x + angle.sin() * step_z
    found = torch.stack([ahead, aside, yaw.diff(dim=1), pitch.diff(dim=1)], dim=-1)
    return (found / found.new_tensor(UNITS)).float()


def asked(actions_BFA: Tensor, config: ActionsConfig) -> Tensor:
    """Motions [B, F, M] that vectors of actions ask for, as `moved` counts them."""

    def key(name: str) -> Tensor:
        found = actions_BFA[..., config.keys.index(name)] if name in config.keys else actions_BFA[..., 0] * 0
        return found.float()

    ahead = key("w") - key("s")
    aside = key("d") - key("a")
    slant = (ahead.square() + aside.square()).sqrt().clamp(min=1.0)
    turn = key("right") - key("left")
    tilt = key("up") - key("down")
    if config.look:
        look = actions_BFA[..., len(config.keys) : len(config.keys) + 2].float() * LOOK_UNIT
        turn = turn + look[..., 0] / UNITS[MOTIONS.index("turn")]
        tilt = tilt - look[..., 1] / UNITS[MOTIONS.index("tilt")]  # looks count downwards
    return torch.stack([ahead / slant, aside / slant, turn, tilt], dim=-1)


def looks_of(pixels_BTCYX: Tensor) -> Tensor:
    """Looks [B, F, T, C, Y, X] at the latent frames of bytes that begin with the frame before them."""
    frames = pixels_BTCYX.shape[1]
    assert frames % TEMPORAL_STRIDE == 1, f"{frames} frames are not one and then whole latent frames"
    small = F.interpolate(from_bytes(pixels_BTCYX).float().flatten(0, 1), size=(SIZE, SIZE), mode="area")
    small = small.unflatten(0, pixels_BTCYX.shape[:2])
    looks: Tensor = small.unfold(1, LOOKED, TEMPORAL_STRIDE).movedim(-1, 2)
    return looks


@torch.inference_mode()
def read_motion(judge: MotionJudge, pixels_BTCYX: Tensor) -> Tensor:
    """Motions [B, F, M] of latent frames, from bytes that begin with the frame before them."""
    found = []
    for row in pixels_BTCYX:
        found += [judge(part) for part in looks_of(row[None])[0].split(READ_AT_ONCE)]
    motions: Tensor = torch.cat(found).unflatten(0, (len(pixels_BTCYX), -1))
    return motions


def save_motion_judge(path: Path, judge: MotionJudge) -> None:
    tensors = {name: weight.detach().cpu().half().contiguous() for name, weight in judge.state_dict().items()}
    save_file(tensors, path, metadata={"motions": ",".join(MOTIONS)})


def load_motion_judge(path: Path, device: torch.device) -> MotionJudge:
    judge = MotionJudge()
    try:
        judge.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise WeightsError(
            f"{path} is no judge of motion ({type(error).__name__}); a stage of method motion in a recipe of "
            "millstream train brook leaves motion.safetensors"
        ) from None
    return judge.to(device).eval().requires_grad_(False)
