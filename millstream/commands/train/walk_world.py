"""`millstream train data world --walk`: pictures of walks, and videos of them with captions and actions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from millstream.commands.train.preview_request import CAPTIONS, CLIP, SHEET, PreviewRequest
from millstream.core.files import Staging
from millstream.train.data.actions_file import SUFFIXES, actions_text
from millstream.train.data.preview import as_bytes, tile
from millstream.train.data.render import FPS
from millstream.train.data.walk.actions import Actions, random_tracks
from millstream.train.data.walk.captions import NEW_WORDS, walk_attributes, walk_captions
from millstream.train.data.walk.render import Rendered, render_walks
from millstream.train.data.walk.scene import WALK_SETTINGS, Walks, sample_walks
from millstream.train.data.walk.walker import Poses, action_rows, walk
from millstream.video.picture import png
from millstream.video.writer import VideoWriter, system_errors_named

COLUMNS = 6
"""Moments of each walk on the sheet."""


def walk_targets(request: PreviewRequest) -> list[Path]:
    """Paths of all files that will be written."""
    names = [SHEET, CLIP, CAPTIONS]
    if request.videos:
        ends = (".mp4", ".txt", *(f".actions{suffix}" for suffix in SUFFIXES))
        names = [f"{number:04d}{end}" for number in range(request.count) for end in ends]
    return [request.out / name for name in names]


def write_walks(request: PreviewRequest) -> None:
    frames = max(1, round(request.seconds * FPS))
    walks = sample_walks(request.count, seed=request.seed, held_out=request.held_out)
    actions = random_tracks(
        request.count, frames=frames, seed=request.seed, fps=FPS, held_out=request.held_out
    )
    poses = walk(walks, actions, fps=FPS)
    if not request.videos:
        _write_preview(request, walks, actions, poses)
        return
    for number in range(request.count):
        _write_video(request, walks[number : number + 1], actions, poses, number)


def _write_video(request: PreviewRequest, scene: Walks, actions: Actions, poses: Poses, number: int) -> None:
    """One walk, its caption, and its actions in either form."""
    stem = f"{number:04d}"
    one = Poses(
        **{name: getattr(poses, name)[number : number + 1] for name in ("x", "y", "z", "yaw", "pitch")}
    )
    labels = []
    with VideoWriter(request.out / f"{stem}.mp4", fps=FPS, overwrite=request.overwrite) as writer:
        for rendered in _by_seconds(scene, one, request):
            writer.write(as_bytes(rendered.pixels)[0].numpy())
            labels.append(_small(rendered.labels))
    track = actions[number : number + 1]
    found = walk_attributes(scene, track, torch.cat(labels, dim=1), fps=FPS)
    # a caption's lots are those of its number, however many walks there are
    line = walk_captions(scene, found, seed=request.seed + number)[0]
    rows = action_rows(actions, poses, number)
    with system_errors_named(request.out), Staging(request.out) as staging:
        staging.path(f"{stem}.txt").write_text(f"{line}\n")
        for suffix in SUFFIXES:
            staging.path(f"{stem}.actions{suffix}").write_text(actions_text(rows, suffix))


def _write_preview(request: PreviewRequest, walks: Walks, actions: Actions, poses: Poses) -> None:
    """A sheet with a row a walk, a clip of all walks side by side, and their captions."""
    columns = math.ceil(math.sqrt(len(walks)))
    blank = -len(walks) % columns
    wanted = [round(i * (actions.frames - 1) / (COLUMNS - 1)) for i in range(COLUMNS)]
    shown: dict[int, Tensor] = {}
    labels = []
    at = 0
    with VideoWriter(request.out / CLIP, fps=FPS, overwrite=request.overwrite) as writer:
        for rendered in _by_seconds(walks, poses, request):
            pictures = as_bytes(rendered.pixels)
            for i in range(pictures.shape[1]):
                if at + i in wanted:
                    shown[at + i] = pictures[:, i]
            at += pictures.shape[1]
            labels.append(_small(rendered.labels))
            filled = torch.cat((pictures, pictures.new_full((blank, *pictures.shape[1:]), 255)))
            grid = filled.unflatten(0, (-1, columns)).movedim(2, 0)
            writer.write(np.stack([tile(moment).numpy() for moment in grid]))
    found = walk_attributes(walks, actions, torch.cat(labels, dim=1), fps=FPS)
    lines = walk_captions(walks, found, seed=request.seed)
    sheet = tile(torch.stack([shown[moment] for moment in wanted], dim=1))
    with system_errors_named(request.out), Staging(request.out) as staging:
        staging.path(SHEET).write_bytes(png(sheet.numpy()))
        staging.path(CAPTIONS).write_text("".join(f"{line}\n" for line in lines))


def _by_seconds(walks: Walks, poses: Poses, request: PreviewRequest) -> Iterator[Rendered]:
    """Second by second, so that memory does not grow with the length."""
    step = round(FPS)
    total = poses.x.shape[1]
    for start in range(0, total, step):
        yield render_walks(walks, poses, start=start, frames=min(step, total - start), size=request.size)


def _small(labels: Tensor) -> Tensor:
    """Every fourth label each way: enough for what a caption says."""
    return labels[..., 1::4, 1::4]


def print_walk_summary() -> None:
    """Print what a walk adds to the world that pans."""
    table = Table("what", "number", "which")
    table.add_row("settings", str(len(WALK_SETTINGS)), f"{', '.join(WALK_SETTINGS)}: nobody walks in space")
    table.add_row("new words", str(len(NEW_WORDS)), ", ".join(NEW_WORDS))
    Console().print(table)
