"""A run in Weights & Biases, where that is installed and the recipe names a project. Nothing else needs it.

A run that is taken up again goes on in the same place: its id is made from its folder.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class WandbLog:
    def __init__(self, wandb: Any, project: str, folder: Path, about: Mapping[str, Any]) -> None:
        self._wandb = wandb
        name = hashlib.blake2b(str(folder.resolve()).encode(), digest_size=8).hexdigest()
        self._run = wandb.init(
            project=project, name=folder.name, id=name, resume="allow", dir=str(folder), config=dict(about)
        )

    def add(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def add_clips(self, step: int, clips: Sequence[Path], prompts: Sequence[str]) -> None:
        shown = [
            self._wandb.Video(str(clip), caption=prompt, format="mp4")
            for clip, prompt in zip(clips, prompts, strict=True)
        ]
        self._run.log({"samples": shown}, step=step)

    def close(self) -> None:
        self._run.finish()


def open_wandb(project: str, folder: Path, about: Mapping[str, Any]) -> WandbLog | None:
    """None where it is not installed."""
    try:
        wandb = importlib.import_module("wandb")
    except ImportError:
        return None
    return WandbLog(wandb, project, folder, about)
