"""Whole clips of walks, as a trainer wants them: what is drawn, done, seen and said, by one seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from millstream.train.data.render import FPS
from millstream.train.data.walk.actions import Actions, random_tracks
from millstream.train.data.walk.captions import WalkAttributes, walk_attributes
from millstream.train.data.walk.render import Rendered, render_walks
from millstream.train.data.walk.scene import Walks, sample_walks
from millstream.train.data.walk.walker import Poses, walk


@dataclass(frozen=True, kw_only=True, slots=True)
class WalkClips:
    """B clips of T frames; all but what is rendered is on the CPU."""

    walks: Walks
    actions: Actions
    poses: Poses
    rendered: Rendered
    attributes: WalkAttributes
    """Attributes beside `attributes(walks.scenes)`."""


def walk_clips(
    count: int,
    *,
    seed: int,
    frames: int,
    size: tuple[int, int] = (256, 256),
    fps: float = FPS,
    held_out: bool | None = False,
    start: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> WalkClips:
    """Clips `start` to `start + count` of a seed: `sample_walks`, `random_tracks`, `walk` and `render_walks` in
    turn."""
    walks = sample_walks(count, seed=seed, held_out=held_out, start=start)
    actions = random_tracks(count, frames=frames, seed=seed, fps=fps, held_out=held_out, start=start)
    poses = walk(walks, actions, fps=fps)
    rendered = render_walks(walks, poses, size=size, fps=fps, device=device, dtype=dtype)
    found = walk_attributes(walks, actions, rendered.labels, fps=fps)
    return WalkClips(walks=walks, actions=actions, poses=poses, rendered=rendered, attributes=found)
