"""Random trees of forks, rewinds and edits: every leaf against a stream that was steered the same way and
never forked.

    python -m tests.soak.fork_trees --trees 100

A tree begins with one session. Each move lets a branch go on, steers it, forks it where it is or at a chunk
that it keeps, or rewinds it. In the end each branch's latents are compared, bit for bit, with those of a new
session that is given the branch's controls from its first chunk on; and its journal is replayed along its
path.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream.core.controls import AnyControl, Cut, SetKVBias, SetPrompt, SetSeed, SetSteps, SetWindow
from millstream.core.rewind import RewindConfig
from millstream.engine.engine import Engine
from millstream.engine.replay import replay
from millstream.session.forks import as_parent, restart_at
from millstream.session.journal import JournalWriter
from millstream.session.journal_path import read_path
from millstream.session.session import Session
from tests.soak.report import write_report

SIZE: dict[str, Any] = dict(height=32, width=48, window=6)
LIMITS = RewindConfig(states=3, every=3, latents=24)
MOST_LEAVES = 5
CONTROLS: tuple[AnyControl, ...] = (
    SetPrompt(prompt="storm", mode="blend", chunks=2),
    SetPrompt(prompt="a desert", mode="recompute"),
    SetPrompt(prompt="night", mode="keep"),
    SetWindow(window=9, sink=2),
    SetSteps(steps=(1000, 600)),
    SetKVBias(kv_bias=0.7),
    SetSeed(seed=12),
    Cut(),
)


@dataclass(frozen=True, slots=True)
class Edit:
    control: AnyControl
    at_chunk: int


@dataclass(slots=True)
class Branch:
    session: Session
    journal: JournalWriter
    path: Path
    edits: list[Edit] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    """Digests of every chunk since the first, those of its parents included."""
    asked: dict[int, list[Edit]] = field(default_factory=dict)
    """All that had been asked for when each chunk was planned."""

    def edits_at(self, chunk: int) -> list[Edit]:
        """Return the edits of a branch that begins before a chunk; edits asked for the chunk itself are not
        among them."""
        return [edit for edit in self.asked[chunk] if edit.at_chunk != chunk]


class Tree:
    def __init__(self, engine: Engine, seed: int, folder: Path) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.folder = folder
        self.config = engine.stream_config(**SIZE)
        self.moves: Counter[str] = Counter()
        self.branches: list[Branch] = []
        path, journal = self._journal("0")
        self.branches.append(
            Branch(engine.session("sea", config=self.config, journal=journal, session_id="0"), journal, path)
        )

    def grow(self, moves: int) -> None:
        for _ in range(moves):
            branch = self.random.choice(self.branches)
            move = self.random.choice((self.go_on, self.go_on, self.edit, self.fork, self.rewind))
            move(branch)
        for branch in self.branches:
            self.go_on(branch)

    def go_on(self, branch: Branch) -> None:
        for chunk in branch.session.stream(self.random.randint(1, 3)):
            branch.asked[chunk.index] = list(branch.edits)
            branch.digests.append(chunk.digest)
        self.moves["chunks"] = sum(len(each.digests) for each in self.branches)

    def edit(self, branch: Branch) -> None:
        now = branch.session.timeline.chunk_index
        edit = Edit(self.random.choice(CONTROLS), now + self.random.choice((0, 0, 1, 3)))
        branch.session.control(edit.control, at_chunk=edit.at_chunk)
        branch.edits.append(edit)
        self.moves["edits"] += 1

    def fork(self, parent: Branch) -> None:
        if len(self.branches) == MOST_LEAVES:
            return
        session = parent.session
        chunk = self._chosen(parent, or_now=True)
        restart = restart_at(session, chunk)
        name = str(len(self.branches))
        path, journal = self._journal(name, session, parent.path.name, chunk)
        branch = session.fork(chunk, session_id=name, journal=journal)
        edits = list(parent.edits) if chunk is None else parent.edits_at(chunk)
        self.branches.append(
            Branch(branch, journal, path, edits, parent.digests[: restart.timeline.chunk_index])
        )
        self.moves["forks"] += 1

    def rewind(self, branch: Branch) -> None:
        chunk = self._chosen(branch, or_now=False)
        if chunk is not None:
            branch.session.rewind(chunk)
            branch.edits = branch.edits_at(chunk)
            del branch.digests[chunk:]
            self.moves["rewinds"] += 1

    def differing(self) -> int:
        """Chunks of leaves that are not those of the same stream without forks, or of the replay of its
        journal."""
        wrong = 0
        for branch in self.branches:
            branch.session.close()
            branch.journal.close()
            straight = self.engine.session("sea", config=self.config)
            for edit in branch.edits:
                straight.control(edit.control, at_chunk=edit.at_chunk)
            expected = [chunk.digest for chunk in straight.stream(len(branch.digests))]
            straight.close()
            wrong += sum(found != wanted for found, wanted in zip(branch.digests, expected, strict=True))
            replayed = list(replay(self.engine, read_path(branch.path)))
            assert [each.chunk.digest for each in replayed] == branch.digests, (
                f"{branch.path} replays to other chunks"
            )
            wrong += sum(not each.identical for each in replayed)
        return wrong

    def _chosen(self, branch: Branch, *, or_now: bool) -> int | None:
        """A chunk that can be gone back to exactly; None: now."""
        session = branch.session
        now = session.timeline.chunk_index
        kept = [chunk for chunk in session.trail.chunks if chunk < now and restart_at(session, chunk).exact]
        return None if not kept or (or_now and self.random.random() < 0.4) else self.random.choice(kept)

    def _journal(
        self, name: str, parent: Session | None = None, parent_path: str = "", chunk: int | None = None
    ) -> tuple[Path, JournalWriter]:
        path = self.folder / f"{name}.jsonl"
        named = None if parent is None else as_parent(parent, restart_at(parent, chunk), parent_path)
        return path, JournalWriter(path, self.engine.journal_header(self.config, name, parent=named))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--moves", type=int, default=10)
    options = parser.parse_args()
    engine = Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32", rewind=LIMITS)
    moves = Counter[str]()
    leaves = 0
    differing = 0
    begun = time.monotonic()
    for seed in range(options.trees):
        with tempfile.TemporaryDirectory() as folder:
            tree = Tree(engine, seed, Path(folder))
            tree.grow(options.moves)
            differing += tree.differing()
            leaves += len(tree.branches)
            moves += tree.moves
    assert differing == 0, f"{differing} chunks differ from their straight-line replay"
    measured = dict(
        trees=options.trees, leaves=leaves, **moves, differing=differing, seconds=time.monotonic() - begun
    )
    write_report("fork_trees", dict(model="wan-tiny", moves=options.moves, **SIZE), measured)


if __name__ == "__main__":
    main()
