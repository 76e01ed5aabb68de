"""One folder for what is kept: recordings, journals, snapshots. Names are made here; no client's string is ever part of a path.

A file is found by looking its name up among those that are there. Bounded: past `max_files` or `max_bytes` of a kind, the
oldest of whoever holds most goes, so that nobody's files go for those of one who keeps more.
Knows nothing of what is in the files.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from millstream.core.errors import ConfigError, UnknownFile

Kind = Literal["recordings", "journals", "snapshots"]
SUFFIXES: dict[Kind, str] = {"recordings": ".mp4", "journals": ".jsonl", "snapshots": ".safetensors"}
NAME = re.compile(r"[A-Za-z0-9_-]{22}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShelfLimits:
    """For each kind."""

    max_files: int = 200
    max_bytes: int = 4 * 2**30


@dataclass(frozen=True, slots=True)
class Kept:
    """A whole file."""

    name: str
    path: Path
    num_bytes: int
    owner: str
    """Whose it is; of a file from an earlier run nobody knows, and each counts as somebody else's."""


class Shelf:
    def __init__(self, folder: Path, limits: ShelfLimits | None = None) -> None:
        self.limits = limits or ShelfLimits()
        self._folder = folder
        self._kept: dict[Kind, dict[str, Kept]] = {}
        for kind, suffix in SUFFIXES.items():
            try:
                (folder / kind).mkdir(parents=True, exist_ok=True)
                self._kept[kind] = {kept.name: kept for kept in _listed(folder / kind, suffix)}
            except OSError as error:
                raise ConfigError(f"cannot keep files in {folder}: {error.strerror}; choose another --data") from None

    def new(self, kind: Kind) -> tuple[str, Path]:
        """A name, and where to write what will have it."""
        name = secrets.token_urlsafe(16)
        return name, self._folder / kind / f"{name}{SUFFIXES[kind]}"

    def keep(self, kind: Kind, name: str, *, owner: str = "") -> Kept:
        """The file is whole: it can be found from now on. Older ones may go for it."""
        path = self._folder / kind / f"{name}{SUFFIXES[kind]}"
        kept = self._kept[kind][name] = Kept(name, path, path.stat().st_size, owner or name)
        self._make_room(kind)
        return kept

    def get(self, kind: Kind, name: str) -> Kept | None:
        kept = self._kept[kind].get(name)
        return kept if kept is not None and kept.path.is_file() else None

    def find(self, kind: Kind, name: str) -> Kept:
        kept = self.get(kind, name)
        if kept is None:
            raise UnknownFile(f"there is no such file among the {kind}; the oldest are removed when there are too many")
        return kept

    def _make_room(self, kind: Kind) -> None:
        held = self._kept[kind]
        while len(held) > 1:
            too_many = len(held) > self.limits.max_files
            if not too_many and sum(kept.num_bytes for kept in held.values()) <= self.limits.max_bytes:
                return
            goes = _oldest_of_the_greediest(list(held.values()), by_files=too_many)
            del held[goes.name]
            goes.path.unlink(missing_ok=True)


def _oldest_of_the_greediest(files: list[Kept], *, by_files: bool) -> Kept:
    """Never the newest: it was kept a moment ago."""
    shares: Counter[str] = Counter()
    for kept in files:
        shares[kept.owner] += 1 if by_files else kept.num_bytes
    return max(files[:-1], key=lambda kept: shares[kept.owner])  # the first of equals, and so the oldest


def _listed(folder: Path, suffix: str) -> list[Kept]:
    """Files with names of ours, oldest first."""
    files = [(path.stat(), path) for path in folder.iterdir() if path.suffix == suffix and NAME.fullmatch(path.stem)]
    files.sort(key=lambda pair: pair[0].st_mtime)
    return [Kept(path.stem, path, found.st_size, path.stem) for found, path in files]
