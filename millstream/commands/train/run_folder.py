"""The folder of a training run: what it keeps beside checkpoints, whose recipe it follows, and what a full
disk means."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from safetensors import SafetensorError

from millstream.core.errors import ConfigError, NotKept
from millstream.core.files import Staging
from millstream.train.interrupt import Stopped
from millstream.train.parallel.checkpoint import GO_ON

RECIPE = "recipe.toml"
RUN = "run.json"
MAY_CHANGE = {"parallel", "checkpoint_every", "keep", "samples", "sample_prompts", "wandb"}
"""Settings of a recipe that may change when a run is resumed."""


@contextmanager
def writing_to(folder: Path, *, with_others: bool = False) -> Iterator[None]:
    """Makes the folder, and has it for this run alone unless others are to write there too. A disk that is
    full or cannot be written to, and a request to stop, end the run in one line that says what is kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with nullcontext() if with_others or not _is_first() else _alone_in(folder):
            yield
    except (OSError, SafetensorError) as error:
        raise NotKept(f"the run in {folder} has ended: {error}; {GO_ON}") from None
    except Stopped:
        said = f"stopped and saved in {folder}; the same command goes on"
        if "RANK" not in os.environ:
            raise KeyboardInterrupt(said) from None
        if _is_first():  # of ranks that end otherwise torchrun makes new ones
            Console(stderr=True).print(said, soft_wrap=True, highlight=False)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped at once; the same command goes on from what is saved in {folder}"
        ) from None


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise ConfigError(
            f"another run writes to {folder}; wait for its end, or choose another --out"
        ) from None
    except OSError:  # a disk that knows no locks
        pass
    try:
        yield
    finally:
        os.close(held)


def refuse_other_recipe(folder: Path, path: Path, renamed: Mapping[str, str]) -> None:
    """Raise ConfigError unless `path` is the recipe that the run began with; how ranks share it, and what is
    shown and kept, may change. `renamed` has the keys of older recipes and their new names."""
    kept = folder / RECIPE
    if not kept.exists():
        return
    before, now = (dict(flat_settings(msgspec.toml.decode(each.read_bytes()))) for each in (kept, path))
    before = {renamed.get(name, name): value for name, value in before.items()}
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name) and name.partition(".")[0] not in MAY_CHANGE:
            was, is_now = (repr(each[name]) if name in each else "not said" for each in (before, now))
            raise ConfigError(
                f"{folder} holds a run of another recipe: {name} was {was} and is {is_now}; put it back to "
                "go on, or choose "
                "another --out"
            )


def flat_settings(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings of nested tables by dotted names: `parallel.dp`."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flat_settings(value, f"{above}{name}.")
        else:
            yield above + name, value


def keep_record(folder: Path, path: Path, record: Mapping[str, Any]) -> None:
    """Keep what it takes to repeat the run: the recipe, and what it ran on."""
    with Staging(folder) as staging:
        shutil.copyfile(path, staging.path(RECIPE))
        staging.path(RUN).write_text(json.dumps(record, indent=2))


def say_stopping() -> None:
    """For a signal's handler: written past the buffers, in which it may have been called. By the first rank
    alone."""
    if _is_first():
        os.write(
            2, b"\nstopping when this step is done and saved; ask again to stop at once, which loses it\n"
        )


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"
