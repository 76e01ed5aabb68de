"""One folder for what is kept: recordings, journals, snapshots, sessions. Names are made here: no client's
string is in a path.

A file is found by looking its name up among those that are there. Only whole files have one: what is being
written lies in a draft (`core/files.py`). Of what a killed server left in drafts, the start keeps what is
whole and removes the rest. Bounded: past `max_files` or `max_bytes` of a kind, drafts counted, the oldest of
whoever holds most goes, so that nobody's files go for those of one who keeps more.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from millstream.core.errors import ConfigError, Overloaded, UnknownFile
from millstream.core.files import Draft, drafts, left_behind
from millstream.core.keys import Key
from millstream.server.sessions.shared_files import SharedFiles
from millstream.video.salvage import cut_to_whole_film, cut_to_whole_lines

log = logging.getLogger(__name__)

Kind = Literal["recordings", "journals", "snapshots", "sessions"]
SUFFIXES: dict[Kind, str] = {
    "recordings": ".mp4", "journals": ".jsonl", "snapshots": ".safetensors", "sessions": ".safetensors",
}  # fmt: skip
SALVAGE: dict[Kind, Callable[[Path], bool]] = {
    "recordings": cut_to_whole_film,
    "journals": cut_to_whole_lines,
}
"""Kinds of which a part is worth having."""
MAX_AGE_S: dict[Kind, float] = {"sessions": 24 * 3600.0}
"""Past which a start removes what nobody came back for."""
NAME = re.compile(r"[A-Za-z0-9_-]{22}")


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreLimits:
    """Limits for each kind of file."""

    max_files: int = 200
    max_bytes: int = 4 * 2**30
    max_session_bytes: int = 32 * 2**30
    """Most bytes of kept sessions: one of a large model has gigabytes, and each has one file."""

    def bytes_of(self, kind: Kind) -> int:
        return self.max_session_bytes if kind == "sessions" else self.max_bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """A whole file."""

    name: str
    path: Path
    num_bytes: int
    owner: str
    """Whose it is; of a file from an earlier run nobody knows, and each counts as somebody else's."""


class FileStore:
    def __init__(
        self, folder: Path, limits: StoreLimits | None = None, *, shared: SharedFiles | None = None
    ) -> None:
        """`shared` is where other servers find what is kept here, and this one what is kept there."""
        self.limits = limits or StoreLimits()
        self.shared = shared
        self.logs = shared or SharedFiles.in_folder(folder)
        """Where a session's controls are logged (`keeper.py`): beside its state, wherever that is looked
        for."""
        self._folder = folder
        self._kept: dict[Kind, dict[str, Kept]] = {}
        for kind in SUFFIXES:
            try:
                (folder / kind).mkdir(parents=True, exist_ok=True)
                _try_writing(folder / kind)
                _take_up(folder / kind, kind)
                _remove_old(folder / kind, kind)
                self._kept[kind] = {kept.name: kept for kept in _listed(folder / kind, kind)}
            except OSError as error:
                fix = "make it writable, free some space, or choose another --data"
                raise ConfigError(f"cannot keep files in {folder}: {error.strerror}; {fix}") from None
            self._make_room(kind)

    def new(self, kind: Kind) -> tuple[str, Path]:
        """A name, and where what will have it is to be once it is whole."""
        self._make_room(kind)
        name = secrets.token_urlsafe(16)
        return name, self.place(kind, name)

    def place(self, kind: Kind, name: str) -> Path:
        """Where what has a name of ours lies."""
        assert NAME.fullmatch(name), f"{name!r} was not made here"
        return self._folder / kind / f"{name}{SUFFIXES[kind]}"

    def add(self, kind: Kind, name: str, *, owner: str = "") -> Kept:
        """The file is whole: it can be found from now on. Older ones may go for it."""
        path = self.place(kind, name)
        self._kept[kind].pop(name, None)  # one that was replaced is the newest
        kept = self._kept[kind][name] = Kept(name, path, path.stat().st_size, owner or name)
        self._make_room(kind)
        return kept

    def get(self, kind: Kind, name: str) -> Kept | None:
        kept = self._kept[kind].get(name)
        return kept if kept is not None and kept.path.is_file() else None

    def find(self, kind: Kind, name: str) -> Kept:
        kept = self.get(kind, name)
        if kept is None:
            raise UnknownFile(
                f"there is no such file among the {kind}; the oldest are removed when there are too many"
            )
        return kept

    def share(self, kind: Kind, name: str) -> None:
        """A whole file, for other servers too. Slow."""
        if self.shared is not None:
            path = self.place(kind, name)
            self.shared.put(path, f"{kind}/{path.name}")

    def fetch(self, kind: Kind, name: str) -> bool:
        """Fetch another server's file; return whether it is here now, to be kept. A session's is always asked
        for: it may be newer. Slow."""
        if (
            self.shared is None
            or not NAME.fullmatch(name)
            or (kind != "sessions" and self.get(kind, name) is not None)
        ):
            return False
        path = self.place(kind, name)
        return self.shared.fetch(f"{kind}/{path.name}", path)

    def held(self, kind: Kind) -> tuple[int, int]:
        """Return the number of files and of their bytes."""
        return len(self._kept[kind]), sum(kept.num_bytes for kept in self._kept[kind].values())

    def remove(self, kind: Kind, name: str) -> None:
        """Remove a file that is no longer needed; it need not be there."""
        self._kept[kind].pop(name, None)
        path = self.place(kind, name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("cannot remove %s: %s", path, error.strerror)

    def _make_room(self, kind: Kind) -> None:
        held = self._kept[kind]
        drafted = sum(_draft_sizes(self._folder / kind))
        while len(held) > 1:
            too_many = len(held) > self.limits.max_files
            if not too_many and drafted + sum(
                kept.num_bytes for kept in held.values()
            ) <= self.limits.bytes_of(kind):
                return
            self.remove(kind, _oldest_of_the_greediest(list(held.values()), by_files=too_many).name)


def _oldest_of_the_greediest(files: list[Kept], *, by_files: bool) -> Kept:
    """Return the oldest file of the owner with most; never the newest file, kept a moment ago."""
    assert len(files) > 1, f"of {len(files)} files none is older than the newest"
    shares: Counter[str] = Counter()
    for kept in files:
        shares[kept.owner] += 1 if by_files else kept.num_bytes
    return max(files[:-1], key=lambda kept: shares[kept.owner])  # the first of equals, and so the oldest


def _try_writing(folder: Path) -> None:
    """Write a file: permissions do not bind root, and do not show a disk that is full or read-only."""
    draft = Draft(folder)
    try:
        (draft.path / "tried").write_bytes(b"x" * 4096)
    finally:
        draft.remove()


def _take_up(folder: Path, kind: Kind) -> None:
    """Keep the whole part of each file that a killed server was writing; remove the rest."""
    for draft in left_behind(folder):
        for path in draft.iterdir():
            if kind in SALVAGE and path.is_file() and _is_name(path, kind) and SALVAGE[kind](path):
                log.info("kept what is whole of %s", path.name)
                os.replace(path, folder / path.name)


def _remove_old(folder: Path, kind: Kind) -> None:
    oldest = time.time() - MAX_AGE_S.get(kind, float("inf"))
    for path in folder.iterdir():
        if _is_name(path, kind) and path.stat().st_mtime < oldest:
            path.unlink()


def _draft_sizes(folder: Path) -> Iterator[int]:
    with suppress(OSError):  # a disk that cannot be read is no reason to refuse a session
        for draft in drafts(folder):
            with suppress(FileNotFoundError):  # finished meanwhile
                yield from (path.stat().st_size for path in draft.iterdir())


def _listed(folder: Path, kind: Kind) -> list[Kept]:
    """Files with names of ours, oldest first."""
    files = [(path.stat(), path) for path in folder.iterdir() if _is_name(path, kind)]
    files.sort(key=lambda pair: pair[0].st_mtime)
    return [Kept(path.stem, path, found.st_size, path.stem) for found, path in files]


def _is_name(path: Path, kind: Kind) -> bool:
    return path.suffix == SUFFIXES[kind] and NAME.fullmatch(path.stem) is not None


async def within_quota(key: Key, store: FileStore, keep: Callable[[], Awaitable[Kept]]) -> Kept:
    """One more snapshot, if what its key may keep has room for it. Refused before anything is written where
    one is too many. How large it is shows afterwards: then it is removed again."""
    num_files, num_bytes = store.held("snapshots")
    key.check_snapshots(num_files + 1, num_bytes)
    kept = await keep()
    try:
        key.check_snapshots(*store.held("snapshots"))
    except Overloaded:
        store.remove("snapshots", kept.name)
        raise
    return kept
