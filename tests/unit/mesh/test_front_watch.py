"""The front's eye on its mesh, over processes that only exist on paper: what is known is said at once."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from millstream.core.engine_config import EngineConfig
from millstream.core.errors import MeshLost
from millstream.core.topology import Topology
from millstream.mesh import front_watch
from millstream.mesh.config import MeshConfig
from millstream.mesh.front_watch import FrontWatch
from millstream.mesh.processes import PRELOADED, quick_start
from millstream.mesh.rendezvous import Rendezvous
from millstream.mesh.watchdog import GAVE_UP

PATIENCE_S = 20.0
LONG_S = 1000.0
LEADER = 1
WORKER = 2


class PaperProcesses:
    """Processes of a mesh that end when the test says so."""

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}
        self.one = threading.Event()

    def end(self, rank: int, code: int) -> None:
        self.ended[rank] = code
        self.one.set()

    def codes(self) -> dict[int, int]:
        return dict(self.ended)

    def wait_for_one(self, timeout_s: float) -> None:
        self.one.wait(timeout_s)


class Watched:
    """A watch, and what it says."""

    def __init__(self, board: Rendezvous) -> None:
        engine = EngineConfig(model="wan-tiny", weights=("random:3",), topology=Topology.parse("front+tp2"))
        config = MeshConfig.of(engine, torch.device("cpu"), torch.float32)
        self.processes = PaperProcesses()
        self.board = board
        self.lost: list[MeshLost] = []
        self.told = threading.Event()
        self.watch = FrontWatch(config, board, self.processes, lost=self._lost)  # type: ignore[arg-type]
        self.watch.start()

    def _lost(self, lost: MeshLost) -> None:
        self.lost.append(lost)
        self.told.set()

    def said(self) -> str:
        assert self.told.wait(PATIENCE_S), "the loss was not said"
        return str(self.lost[0])


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(front_watch, "GATHER_S", LONG_S)
    found = Watched(Rendezvous.host())
    yield found
    found.watch.stop()


def test_of_a_rank_that_was_killed_while_the_mesh_was_at_rest_no_other_word_is_waited_for(
    watched: Watched,
) -> None:
    watched.processes.end(WORKER, -signal.SIGKILL)
    assert watched.said() == "rank 2 was killed by SIGKILL"


def test_while_a_chunk_is_under_way_the_one_who_knows_why_may_be_a_moment_later(watched: Watched) -> None:
    watched.watch.waiting_since = time.monotonic
    watched.processes.end(WORKER, -signal.SIGKILL)
    assert not watched.told.wait(0.2)
    watched.board.fail(LEADER, "out of memory")
    watched.processes.end(LEADER, GAVE_UP)
    assert watched.said() == "rank 2 was killed by SIGKILL; rank 1: out of memory"


def test_a_rank_that_left_by_itself_may_not_be_the_one_who_knows_why(watched: Watched) -> None:
    watched.processes.end(WORKER, GAVE_UP)
    assert not watched.told.wait(0.2)
    watched.processes.end(LEADER, -signal.SIGKILL)
    assert watched.said() == "rank 1 was killed by SIGKILL"


def test_whoever_asks_why_is_answered_as_soon_as_it_is_known(watched: Watched) -> None:
    threading.Timer(0.1, watched.processes.end, (WORKER, -signal.SIGKILL)).start()
    assert str(watched.watch.why("the connection failed")) == "rank 2 was killed by SIGKILL"


def test_ranks_find_imported_what_the_program_that_starts_them_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main = ModuleType("__main__")
    vars(main).update(main=FrontWatch.start, watching=front_watch, json=sys, number=3)
    monkeypatch.setitem(sys.modules, "__main__", main)
    asked: list[str] = []
    monkeypatch.setattr(type(quick_start()), "set_forkserver_preload", lambda _, names: asked.extend(names))
    quick_start()
    assert asked == [*PRELOADED, "millstream.mesh.front_watch"], (
        "ours, once each; what others import may start threads"
    )
