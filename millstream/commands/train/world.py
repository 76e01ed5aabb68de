"""`millstream train data world`: what the world to learn holds, pictures of it, and videos that `prepare`
reads."""

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
from millstream.commands.train.walk_world import print_walk_summary, walk_targets, write_walks
from millstream.core.errors import VideoError
from millstream.core.files import Staging
from millstream.train.data import vocabulary
from millstream.train.data.captions import WORDS, captions
from millstream.train.data.preview import as_bytes, contact_sheet, tile
from millstream.train.data.render import FPS, render
from millstream.train.data.scene import Scenes, sample_scenes
from millstream.video.picture import png
from millstream.video.writer import VideoWriter, check_may_replace, check_parent_writable, system_errors_named


def preview(request: PreviewRequest) -> list[Path]:
    """Writes a contact sheet, a clip of all scenes side by side and their captions, or videos and theirs;
    nothing if one cannot be written."""
    targets = _targets(request)
    if request.out.exists() and not request.out.is_dir():
        raise VideoError(f"{request.out} is not a folder; choose another --out")
    for target in targets:
        check_may_replace(target, target.suffix, request.overwrite)
        check_parent_writable(target)
    if request.walk:
        write_walks(request)
        return targets
    scenes = sample_scenes(request.count, seed=request.seed, held_out=request.held_out)
    lines = captions(scenes, seed=request.seed)
    if request.videos:
        for number, (line, video) in enumerate(zip(lines, targets[::2], strict=True)):
            _write_video(video, scenes[number : number + 1], line, request)
        return targets
    _write_clip(targets[1], scenes, request)
    sheet = contact_sheet(scenes, seconds=request.seconds, size=request.size)
    with system_errors_named(request.out), Staging(request.out) as staging:
        staging.path(SHEET).write_bytes(png(sheet))
        staging.path(CAPTIONS).write_text("".join(f"{line}\n" for line in lines))
    return targets


def _targets(request: PreviewRequest) -> list[Path]:
    if request.walk:
        return walk_targets(request)
    names = [f"{number:04d}{end}" for number in range(request.count) for end in (".mp4", ".txt")]
    return [request.out / name for name in (names if request.videos else (SHEET, CLIP, CAPTIONS))]


def _write_video(path: Path, scene: Scenes, caption: str, request: PreviewRequest) -> None:
    with VideoWriter(path, fps=FPS, overwrite=request.overwrite) as writer:
        for pictures_STHW3 in _by_seconds(scene, request):
            writer.write(pictures_STHW3[0].numpy())
    with system_errors_named(request.out), Staging(request.out) as staging:
        staging.path(f"{path.stem}.txt").write_text(f"{caption}\n")


def _write_clip(path: Path, scenes: Scenes, request: PreviewRequest) -> None:
    """Scenes stand in a grid about as wide as high."""
    columns = math.ceil(math.sqrt(len(scenes)))
    blank = -len(scenes) % columns
    with VideoWriter(path, fps=FPS, overwrite=request.overwrite) as writer:
        for pictures in _by_seconds(scenes, request):
            pictures = torch.cat((pictures, pictures.new_full((blank, *pictures.shape[1:]), 255)))
            grid = pictures.unflatten(0, (-1, columns)).movedim(2, 0)
            writer.write(np.stack([tile(moment).numpy() for moment in grid]))


def _by_seconds(scenes: Scenes, request: PreviewRequest) -> Iterator[Tensor]:
    """[S, T, H, W, 3] second by second, so that memory does not grow with the length."""
    total = max(1, round(request.seconds * FPS))
    step = round(FPS)
    for start in range(0, total, step):
        yield as_bytes(render(scenes, start=start, frames=min(step, total - start), size=request.size))


def print_summary(*, walk: bool = False) -> None:
    """Print a table of the vocabulary, its combinations and those held out, and what a walk adds."""
    rows = vocabulary.combinations()
    held_out = sum(map(vocabulary.is_held_out, rows))
    table = Table("what", "number", "which")
    for name in ("SETTINGS", "TIMES", "WEATHERS", "THINGS", "COLOURS", "SIZES", "MOTIONS", "SPEEDS"):
        names = getattr(vocabulary, name)
        table.add_row(name.lower(), str(len(names)), ", ".join(names))
    table.add_row(
        "combinations", str(len(rows)), "of setting, time, weather, thing and colour that go together"
    )
    table.add_row(
        "held out", str(held_out), f"of them, {held_out / len(rows):.1%}: never trained on, for --held-out"
    )
    table.add_row("words", str(len(WORDS)), "in captions")
    Console().print(table)
    if walk:
        print_walk_summary()
