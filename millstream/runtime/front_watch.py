"""The front's eye on its mesh: says that the front lives, sees who does not, and ends a mesh that cannot go on.

A rank whose process is gone, that has been silent for the window, or that works on one chunk for too long, is the end of the
whole mesh: the others wait for it. Before a mesh that hangs is killed, every rank is asked what it is doing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from millstream.core.topology import FRONT
from millstream.runtime.board import Board
from millstream.runtime.crew import Crew
from millstream.runtime.hang_report import describe_rank, write_report
from millstream.runtime.mesh_config import MeshConfig
from millstream.runtime.rank import PEER_GONE
from millstream.runtime.watchdog import GAVE_UP

log = logging.getLogger(__name__)

TICK_S = 0.05
GATHER_S = 0.3
"""For the others' words, once one has gone: the one who knows why may be a moment later."""


class FrontWatch:
    def __init__(self, config: MeshConfig, board: Board, crew: Crew | None) -> None:
        """`crew` are the processes on this machine, None where somebody else starts them."""
        self.waiting_since: Callable[[], float | None] = lambda: None
        """Since when, by `time.monotonic`, the mesh owes an answer."""
        self._config, self._board, self._crew = config, board, crew
        self._problem = ""
        self._stopped = threading.Event()
        self._beats: dict[int, tuple[object, float]] = {}
        self._ranks = config.topology.mesh_ranks
        self._thread = threading.Thread(target=self._run, name="millstream-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def why(self, symptom: str) -> str:
        """The best reason there is for what the link has noticed; kills what is left of the mesh."""
        if self._stopped.is_set():
            return symptom
        deadline = time.monotonic() + GATHER_S
        while not self._problem and time.monotonic() < deadline:
            time.sleep(TICK_S)
        reason = self._told() or self._problem or symptom
        if self._crew is not None:
            self._crew.kill()
        return reason

    def _run(self) -> None:
        count = 0
        while not self._stopped.wait(TICK_S):
            if count * TICK_S % self._config.limits.heartbeat_s < TICK_S:
                self._board.post(f"beat/{FRONT}", count)
            count += 1
            hang = self._hang()
            gone = self._crew.ended() if self._crew is not None else {}
            if hang:
                self._report(hang)
            if hang or gone:
                self._problem = hang or _spelled(gone)
                if self._crew is not None:
                    time.sleep(GATHER_S)
                    self._problem = self._told() or self._problem
                    self._crew.kill()
                return

    def _told(self) -> str:
        """What a rank that knows why said on the board; those that only lost a peer do not know."""
        for rank, reason in self._board.failures(self._ranks).items():
            if reason != PEER_GONE:
                return f"rank {rank}: {reason}"
        return ""

    def _hang(self) -> str:
        """Who is silent, or what takes too long; empty if all is well."""
        now, limits = time.monotonic(), self._config.limits
        for rank in self._ranks:
            beat = self._board.read(f"beat/{rank}")
            if beat is None:
                continue
            if beat != self._beats.get(rank, (None,))[0]:
                self._beats[rank] = beat, now
            elif now - self._beats[rank][1] > limits.window_s:
                return f"rank {rank} has been silent for {limits.window_s:g} s"
        since = self.waiting_since()
        if since is not None and now - since > limits.hang_s:
            return f"the mesh has not answered for {limits.hang_s:g} s"
        return ""

    def _report(self, reason: str) -> None:
        """Ask every rank what it is doing and write it down; who does not answer is known by its last sign of life."""
        self._board.post("report", reason)
        time.sleep(min(2.0, 2 * self._config.limits.heartbeat_s))
        found = {rank: self._board.read(f"report/{rank}") for rank in self._ranks}
        told = {rank: text for rank, text in found.items() if text is not None}
        told[FRONT] = describe_rank(FRONT, None, "watching")
        silent = [rank for rank, text in found.items() if text is None]
        told |= {rank: f"rank {rank}, when last heard: {self._beats.get(rank, ('never',))[0]}" for rank in silent}
        path = write_report(self._config.reports, reason, told)
        log.error("%s; what each rank was doing is in %s", reason, path)


def _spelled(gone: Mapping[int, str]) -> str:
    """Who went first is told from who left because of it."""
    first = {rank: how for rank, how in gone.items() if not how.endswith(f" {GAVE_UP}")}
    return "; ".join(f"rank {rank} {how}" for rank, how in (first or gone).items())
