"""What travels between a machine that is lent for a while and one that is kept: rows, classifiers, and of tuned files the part
that was tuned.

A whole Brook is larger than what may come back in one file; its decoder and its words are those of the file that it was tuned
from, so its DiT alone travels, in the very numbers that were judged, and the file is whole again where it arrives.
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
from millstream.trainer.tuning.export import BROOK

ROWS, CLASSIFIER = "rows.json", ".classifier.safetensors"
TUNED = ".tuned.safetensors"
PART = "dit."
"""Of a Brook file, what was tuned."""


def bring(out: Path, to: Path, names: Iterable[str], shipped: Iterable[str], base: Path) -> None:
    """All that is done so far, each file in the place of the one before; of tuned files, `shipped` alone, by their folders."""
    to.mkdir(parents=True, exist_ok=True)
    rows = Rows(out)
    write_whole(to / ROWS, json.dumps({name: rows.read(name) for name in names if name in rows}, indent=2) + "\n")
    for path in out.glob(f"*{CLASSIFIER}"):
        shutil.copyfile(path, to / path.name)
    for name in shipped:
        whole, part = out / name / BROOK, to / f"{name}{TUNED}"
        if whole.exists() and (not part.exists() or part.stat().st_mtime < whole.stat().st_mtime):
            write_part(whole, part, base)


def take(brought: Path, out: Path, base: Path) -> None:
    """What another machine did: rows and files that are not here yet."""
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
    """What was tuned of a Brook file, number for number; the rest must be that of its `base`."""
    with safe_open(whole, framework="pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    before = load_file(base)
    others = [name for name in tensors if not name.startswith(PART) and not tensors[name].equal(before[name])]
    assert not others, f"{whole} was tuned in more than its DiT: {', '.join(others[:3])}"
    with Staging(part.parent) as staging:
        save_file({name: tensors[name] for name in tensors if name.startswith(PART)}, staging.path(part.name), metadata)


def write_brook(part: Path, whole: Path, base: Path) -> None:
    """The Brook file that `write_part` had, from its part and what it was tuned from."""
    with safe_open(part, framework="pt") as file:
        metadata = file.metadata()
    with Staging(whole.parent) as staging:
        save_file(load_file(base) | load_file(part), staging.path(whole.name), metadata)
