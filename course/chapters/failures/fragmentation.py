"""Enough memory is free, and still nothing fits: it lies in pieces. Pages of one size cannot be broken like
that.

A small heap stands for the device's: it gives out the first hole that is large enough. Its map has the form
of torch's own snapshots, so that the profiler reads it as it reads those of a GPU.
"""

from __future__ import annotations

from typing import Any

from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.profiler.dumps.snapshot import MIB, read_snapshot


class Heap:
    def __init__(self, size: int) -> None:
        self._blocks: list[tuple[int, str]] = [(size, "")]
        """Sizes in order of address, and who has each; nobody has a hole."""

    def allocate(self, size: int, owner: str) -> bool:
        for place, (hole, holder) in enumerate(self._blocks):
            if not holder and hole >= size:
                rest = [(hole - size, "")] if hole > size else []
                self._blocks[place : place + 1] = [(size, owner), *rest]
                return True
        return False

    def give_back(self, owner: str) -> None:
        merged = list[tuple[int, str]]()
        for size, holder in ((size, "" if holder == owner else holder) for size, holder in self._blocks):
            if merged and not holder and not merged[-1][1]:
                merged[-1] = merged[-1][0] + size, ""
            else:
                merged.append((size, holder))
        self._blocks = merged

    def snapshot(self) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = [
            {"size": size * MIB, "state": "active_allocated" if holder else "inactive", "frames": []}
            for size, holder in self._blocks
        ]
        return {"segments": [{"total_size": sum(size for size, _ in self._blocks) * MIB, "blocks": blocks}]}


def run(reader: Reader, sessions: int = 16, each: int = 4, asked: int = 8) -> None:
    """`each` and `asked` in MiB."""
    if sessions < 4 or sessions % 2 or not 0 < each < asked:
        raise CourseError(
            f"--sessions must be even and 4 or more, --asked more than --each; got {sessions}, {asked}, "
            f"{each}"
        )
    heap = Heap(sessions * each)
    for session in range(sessions):
        assert heap.allocate(each, f"session {session}"), "it fits exactly"
    for session in range(0, sessions, 2):
        heap.give_back(f"session {session}")
    guess = reader.predict(
        f"{sessions} sessions of {each} MiB fill the memory, every other one ends. How many MiB are free?"
    )
    seen = read_snapshot(heap.snapshot())
    free = seen.reserved_mib - seen.allocated_mib
    reader.reveal(guess, free, by="half of them")
    assert not heap.allocate(asked, "a large one"), "there is no hole for it"
    reader.say(f"symptom: out of memory. {asked} MiB are asked for, {free:g} are free")
    reader.say(
        f"tool: the profiler on the snapshot: {seen.idle_share:.0%} idle, largest free piece "
        f"{seen.largest_free_mib:g} MiB"
    )
    assert seen.largest_free_mib == each < asked <= free, f"{seen}"
    pages = [heap.allocate(each, f"page {page} of the large one") for page in range(-(-asked // each))]
    assert all(pages), "every hole is a page"
    reader.say(
        f"fix: pages of {each} MiB that need not lie side by side: the large one has {len(pages)} of them"
    )
