"""A branch's journal together with those it descends from: one journal of the path from the first chunk to
the branch's last.

A branch's journal names its parent's file and how many lines that had when the branch began, so that it does
not matter what the parent did later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from millstream.core.errors import JournalError
from millstream.session.journal import ChunkLine, Journal, SavedStart, read_journal

MAX_GENERATIONS = 1000
"""Most generations of branches of branches. More are a circle."""


def read_path(path: Path, *, where: Callable[[Path], Path] = lambda path: path) -> Journal:
    """The whole path of a journal; of one without a parent, the journal itself. `where` says where a file
    lies that does not have its place yet."""
    journal = branch = read_journal(where(path))
    chunks = list(branch.chunks)
    place = path
    for _ in range(MAX_GENERATIONS):
        parent = branch.header.parent
        if parent is None:
            start = _seen_from(path, place, branch.header.start)
            header = msgspec.structs.replace(
                journal.header, start=start, input=branch.header.input, parent=None
            )
            return Journal(header=header, chunks=tuple(chunks), cut_short=journal.cut_short)
        place = place.parent / parent.path
        if not where(place).is_file():
            raise JournalError(
                f"{place}, the journal that this branch was forked from, is not there; put it beside the "
                "branch's"
            )
        branch = read_journal(where(place), lines=parent.lines)
        if branch.header.session_id != parent.session_id:
            raise JournalError(
                f"{place} is not the journal that this branch was forked from; put the right one there"
            )
        chunks = [*_before(branch.chunks, parent.chunk, place), *chunks]
    raise JournalError(f"{path} has {MAX_GENERATIONS} parents or more; it is its own")


def _before(chunks: tuple[ChunkLine, ...], chunk: int, place: Path) -> list[ChunkLine]:
    kept = [line for line in chunks if line.envelope.chunk_index < chunk]
    if kept and kept[-1].envelope.chunk_index != chunk - 1:
        raise JournalError(
            f"{place} ends before chunk {chunk}, where this branch begins; give the whole file"
        )
    return kept


def _seen_from(path: Path, place: Path, start: SavedStart | None) -> SavedStart | None:
    """The snapshot that the first of them began with, as it is named from the branch's folder."""
    if start is None or place.parent == path.parent:
        return start
    return msgspec.structs.replace(start, path=str((place.parent / start.path).resolve()))


def as_lines(journal: Journal) -> Iterator[bytes]:
    """Yield the lines of the journal as one file of its own."""
    for line in (journal.header, *journal.chunks):
        yield msgspec.json.encode(line) + b"\n"
