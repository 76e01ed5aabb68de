"""Actions of a video's frames as a model learns them: one vector a latent frame. Their files are read by
`actions_file`.

A latent frame is what several frames of a video are encoded into, so it has the keys that were held in at least
half of them, and all that the view turned by.
Shapes: T pixel frames, F latent frames, K keys, A numbers of an action.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from millstream.core.conditions import FrameActions
from millstream.core.config import TEMPORAL_STRIDE, ActionsConfig
from millstream.models.conditions.actions import LOOK_UNIT, action_vectors
from millstream.train.data.actions_file import SUFFIXES as FORMATS
from millstream.train.data.actions_file import ActionRow

SUFFIXES = tuple(f".actions{suffix}" for suffix in FORMATS)
"""Endings of a file beside a video `clip.mp4`: `clip.actions.csv`, one line a frame."""


def actions_file(video: Path) -> Path | None:
    """Return the file of a video's actions, if there is one beside it."""
    return next(
        (path for suffix in SUFFIXES if (path := video.with_name(video.stem + suffix)).is_file()), None
    )


def frame_actions(rows: Iterable[ActionRow]) -> list[FrameActions]:
    """Return what a file's rows say as a model is told it: controls count looks to the right and down."""
    return [
        FrameActions(keys=tuple(sorted(row.keys)), look=(row.look_x, -row.look_y or 0.0), axes=row.axes)
        for row in rows
    ]


def at_rate(frames: Sequence[FrameActions], *, from_fps: float, fps: float) -> list[FrameActions]:
    """Return the actions at another frame rate: the keys of the moment that each frame shows, and what the
    view turned by since the frame before."""
    count = 0
    made = list[FrameActions]()
    turned = (0.0, 0.0)
    seen = 0
    while count / fps < len(frames) / from_fps:
        moment = min(int(count / fps * from_fps), len(frames) - 1)
        for frame in frames[seen : moment + 1]:
            turned = (turned[0] + frame.look[0], turned[1] + frame.look[1])
        seen = max(seen, moment + 1)
        made.append(msgspec.structs.replace(frames[moment], look=turned))
        turned = (0.0, 0.0)
        count += 1
    return made


def latent_actions(frames: Sequence[FrameActions], config: ActionsConfig) -> Tensor:
    """Vectors of a clip's latent frames [F, A], from those of its pixel frames."""
    return grouped_actions(action_vectors(frames, config), config)


def grouped_actions(actions_TA: Tensor, config: ActionsConfig) -> Tensor:
    """Vectors of latent frames [..., F, A] from those of pixel frames [..., T, A]: the first latent frame is one
    of a clip's, each other four."""
    frames = actions_TA.shape[-2]
    assert frames % TEMPORAL_STRIDE == 1, f"{frames} frames are not 1 and then groups of {TEMPORAL_STRIDE}"
    keys = len(config.keys)
    turns = slice(keys, keys + 2 * config.look)
    later = actions_TA[..., 1:, :].unflatten(-2, (-1, TEMPORAL_STRIDE))  # F-1 4 A
    grouped = later.mean(dim=-2)
    grouped[..., :keys] = (grouped[..., :keys] >= 0.5).to(grouped.dtype)
    grouped[..., turns] = later[..., turns].sum(dim=-2)
    return torch.cat([actions_TA[..., :1, :], grouped], dim=-2)


def numbers_of(
    keys_TK: Tensor, look_T2: Tensor | None, names: Sequence[str], config: ActionsConfig
) -> Tensor:
    """Vectors of pixel frames [..., T, A] from tensors: keys held, by their `names`, and degrees turned to the
    right and down."""
    parts = [keys_TK[..., [names.index(key) for key in config.keys]].float()]
    if config.look:
        assert look_T2 is not None, "a model that takes looks, and a track without any"
        parts.append(look_T2.float() / LOOK_UNIT)
    parts.append(keys_TK.new_zeros((*keys_TK.shape[:-1], config.axes), dtype=torch.float32))
    return torch.cat(parts, dim=-1)


def idle_before(actions_BFA: Tensor | None, given: int) -> Tensor | None:
    """Return the actions of each frame of clips whose first frames are given: nothing in those, as in a session's."""
    if actions_BFA is None or not given:
        return actions_BFA
    return torch.cat([torch.zeros_like(actions_BFA[:, :given]), actions_BFA[:, given:]], dim=1)
