"""The folder of a training run: what it keeps beside checkpoints, whose recipe it follows, and what a full disk means."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors import SafetensorError

from millstream.core.errors import ConfigError, NotKept
from millstream.core.files import Staging
from millstream.parallel.training.checkpoint import GO_ON
from millstream.trainer.interrupt import Stopped

RECIPE, RUN = "recipe.toml", "run.json"


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Makes the folder. A disk that is full or cannot be written to, and whoever asks it to stop, ends the run in one line
    that says what is kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, SafetensorError) as error:
        raise NotKept(f"the run in {folder} has ended: {error}; {GO_ON}") from None
    except Stopped:
        if _is_first():
            say_stopped(folder)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped at once; the same command goes on from what is saved in {folder}") from None


def refuse_other_recipe(folder: Path, path: Path) -> None:
    """A run goes on with the recipe that it began with."""
    kept = folder / RECIPE
    if kept.exists() and kept.read_bytes() != path.read_bytes():
        raise ConfigError(f"{folder} holds a run of another recipe; choose another --out, or remove it to begin anew")


def keep_record(folder: Path, path: Path, record: Mapping[str, Any]) -> None:
    """What it would take to do it again: the recipe, and what it ran on."""
    with Staging(folder) as staging:
        shutil.copyfile(path, staging.path(RECIPE))
        staging.path(RUN).write_text(json.dumps(record, indent=2))


def say_stopping() -> None:
    """For a signal's handler: written past the buffers, in which it may have been called. By the first rank alone."""
    if _is_first():
        os.write(2, b"\nstopping when this step is done and saved; ask again to stop at once, which loses it\n")


def say_stopped(folder: Path) -> None:
    Console(stderr=True).print(f"stopped and saved in {folder}; the same command goes on", soft_wrap=True, highlight=False)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"
