"""Actions of a video's frames as a model learns them: one vector a latent frame.

A latent frame is what several frames of a video are encoded into, so it has the keys that were held in at least
half of them, and all that the view turned by.
Shapes: T pixel frames, F latent frames, K keys, A numbers of an action.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from millstream.core.conditions import FrameActions, check_axes, check_keys, check_look
from millstream.core.config import TEMPORAL_STRIDE, ActionsConfig
from millstream.core.errors import ControlError, VideoError
from millstream.models.conditions.actions import LOOK_UNIT, action_vectors

SUFFIXES = (".actions.csv", ".actions.jsonl")
"""Endings of a file beside a video `clip.mp4`: `clip.actions.csv`, one line a frame."""
COLUMNS = ("keys", "right", "down")
MAX_LINES = 1 << 20


def actions_file(video: Path) -> Path | None:
    """Return the file of a video's actions, if there is one beside it."""
    return next(
        (path for suffix in SUFFIXES if (path := video.with_name(video.stem + suffix)).is_file()), None
    )


def read_actions(path: Path) -> list[FrameActions]:
    """Read the actions of each frame of a video. CSV has a line of names first, `keys,right,down`: keys with +
    between them, degrees that the view turned by; JSON lines have the fields of `FrameActions`."""
    read = _read_csv if path.suffix == ".csv" else _read_json_lines
    found = list[FrameActions]()
    try:
        for actions in read(path):
            if len(found) == MAX_LINES:
                raise VideoError(f"{path} has more than {MAX_LINES} lines; cut the video")
            check_keys(actions.keys)
            check_look(actions.look)
            check_axes(actions.axes)
            found.append(actions)
    except (OSError, UnicodeDecodeError, ValueError, msgspec.MsgspecError, ControlError) as error:
        raise VideoError(f"{path}, frame {len(found)}: {error}") from None
    return found


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
    """Vectors of pixel frames [..., T, A] from tensors, as a renderer has them: keys held, by their `names`, and
    degrees turned."""
    parts = [keys_TK[..., [names.index(key) for key in config.keys]].float()]
    if config.look:
        assert look_T2 is not None, "a model that takes looks, and a track without any"
        parts.append(look_T2.float() / LOOK_UNIT)
    parts.append(keys_TK.new_zeros((*keys_TK.shape[:-1], config.axes), dtype=torch.float32))
    return torch.cat(parts, dim=-1)


def _read_csv(path: Path) -> Iterator[FrameActions]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        unknown = set(rows.fieldnames or ()) - set(COLUMNS)
        if "keys" not in (rows.fieldnames or ()) or unknown:
            raise ValueError(f"its first line names its columns, {','.join(COLUMNS)}")
        for row in rows:
            look = (float(row.get("right") or 0.0), float(row.get("down") or 0.0))
            keys = tuple(sorted(filter(None, (key.strip() for key in (row["keys"] or "").split("+")))))
            yield FrameActions(keys=keys, look=look)


def _read_json_lines(path: Path) -> Iterator[FrameActions]:
    with path.open("rb") as file:
        for line in file:
            yield msgspec.json.decode(line, type=FrameActions)
