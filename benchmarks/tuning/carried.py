"""Files that travel between a machine that is lent for a while and one that is kept: rows, classifiers, and
the tuned part of tuned files.

A whole Brook is larger than one file may be. Its decoder and its words are those of the file that it was
tuned from, so only its DiT travels, with exactly the numbers that were judged, and the file is put together
again where it arrives.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from benchmarks.tuning.rows import Rows
from millstream.core.files import Staging, write_whole
from millstream.train.export import BROOK

ROWS = "rows.json"
CLASSIFIER = ".classifier.safetensors"
TUNED = ".tuned.safetensors"
PART = "dit."
"""Prefix of the tensors of a Brook file that were tuned."""


def bring(out: Path, to: Path, names: Iterable[str], shipped: Iterable[str], base: Path) -> None:
    """All that is done so far, each file in the place of the one before; of tuned files, `shipped` alone, by
    their folders."""
    to.mkdir(parents=True, exist_ok=True)
    rows = Rows(out)
    write_whole(
        to / ROWS, json.dumps({name: rows.read(name) for name in names if name in rows}, indent=2) + "\n"
    )
    for path in out.glob(f"*{CLASSIFIER}"):
        shutil.copyfile(path, to / path.name)
    for name in shipped:
        whole = out / name / BROOK
        part = to / f"{name}{TUNED}"
        if whole.exists() and (not part.exists() or part.stat().st_mtime < whole.stat().st_mtime):
            write_part(whole, part, base)


def merge_rows(brought: Path, out: Path, base: Path) -> None:
    """Take the rows and files from another machine that are not here yet."""
    rows = Rows(out)
    for name, row in json.loads((brought / ROWS).read_text()).items():
        if name not in rows:
            rows.keep(name, row)
    for path in brought.glob(f"*{CLASSIFIER}"):
        if not (out / path.name).exists():
            shutil.copyfile(path, out / path.name)
    for path in brought.glob(f"*{TUNED}"):
        whole = out / path.name.removesuffix(TUNED) / BROOK
        if not whole.exists():
            whole.parent.mkdir(parents=True, exist_ok=True)
            write_brook(path, whole, base)


def write_part(whole: Path, part: Path, base: Path) -> None:
    """Write the tuned part of a Brook file, number for number; the rest must equal its `base`."""
    with safe_open(whole, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    before = load_file(base)
    others = [name for name in tensors if not name.startswith(PART) and not tensors[name].equal(before[name])]
    assert not others, f"{whole} was tuned in more than its DiT: {', '.join(others[:3])}"
    with Staging(part.parent) as staging:
        save_file(
            {name: tensors[name] for name in tensors if name.startswith(PART)},
            staging.path(part.name),
            metadata,
        )


def write_brook(part: Path, whole: Path, base: Path) -> None:
    """The Brook file that `write_part` had, from its part and what it was tuned from."""
    with safe_open(part, framework="pt") as file:
        metadata = file.metadata()
    with Staging(whole.parent) as staging:
        save_file(load_file(base) | load_file(part), staging.path(whole.name), metadata)
