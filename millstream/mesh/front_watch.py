"""The front's watch over its mesh: posts that the front lives, and finds ranks that do not.

A rank whose process is gone, that has been silent for the window, or that works on one chunk for too long, is
the end of the whole mesh: the others wait for it. Of a mesh that hangs, every rank is asked what it is doing.
Then the mesh is declared lost, wherever it was: at work, at rest or about to begin.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from millstream.core.errors import MeshLost
from millstream.core.topology import FRONT
from millstream.mesh.config import MeshConfig
from millstream.mesh.hang_report import describe_rank, parted, write_report
from millstream.mesh.processes import FROM_OUTSIDE, RankProcesses, spelled
from millstream.mesh.rank import PEER_GONE
from millstream.mesh.rendezvous import Rendezvous
from millstream.mesh.watchdog import GAVE_UP

log = logging.getLogger(__name__)

TICK_S = 0.05
GATHER_S = 0.3
"""Seconds to wait for the other ranks' reasons, once one has gone: the rank that knows why may post it a
moment later. Of a rank that was killed while the mesh was at rest, no other knows more."""
KNOWN_S = 3.0
"""Most seconds that the watch may take to find out why the link has failed; only an overloaded machine needs
more than `GATHER_S`."""


class FrontWatch:
    def __init__(
        self,
        config: MeshConfig,
        rendezvous: Rendezvous,
        rank_processes: RankProcesses | None,
        *,
        lost: Callable[[MeshLost], None],
    ) -> None:
        """`rank_processes` are those on this machine, None where they are started from elsewhere. `lost` is
        called once; then there is nothing left to watch."""
        self.waiting_since: Callable[[], float | None] = lambda: None
        """Since when, by `time.monotonic`, the mesh owes an answer."""
        self._config = config
        self._rendezvous = rendezvous
        self._rank_processes = rank_processes
        self._lost = lost
        self._problem: MeshLost | None = None
        self._stopped = threading.Event()
        self._decided = threading.Event()
        """Set when the watch ends: the problem is known, or no longer looked for."""
        self._beats: dict[int, tuple[object, float]] = {}
        self._ranks = config.topology.mesh_ranks
        self._thread = threading.Thread(target=self._run, name="millstream-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._decided.set()
        self._thread.join()

    def why(self, symptom: str) -> MeshLost:
        """Return the best reason there is for what the link has noticed."""
        self._decided.wait(KNOWN_S)
        return self._problem or MeshLost(symptom, from_outside=self._rank_processes is None)

    def _run(self) -> None:
        with suppress(MeshLost):  # another thread has lost the mesh, and closed the board
            count = 0
            while self._problem is None and not self._paused():
                if count * TICK_S % self._config.limits.heartbeat_s < TICK_S:
                    self._rendezvous.post(f"beat/{FRONT}", count)
                count += 1
                self._problem = self._hang() or self._gone()
        self._decided.set()
        if self._problem is not None:
            self._lost(self._problem)

    def _paused(self) -> bool:
        """Wait a tick, unless a process ends before. Return whether there is nothing to watch any more."""
        if self._rank_processes is None:
            return self._stopped.wait(TICK_S)
        self._rank_processes.wait_for_one(TICK_S)
        return self._stopped.is_set()

    def _gone(self) -> MeshLost | None:
        """Return which ranks are gone, and why, as soon as that is known; None if none is."""
        if self._rank_processes is None:
            return self._gone_elsewhere()
        if not (codes := self._rank_processes.codes()):
            return None
        unexplained = self.waiting_since() is not None or not FROM_OUTSIDE.issuperset(codes.values())
        deadline = time.monotonic() + (GATHER_S if unexplained else 0.0)
        while len(codes := self._rank_processes.codes()) < len(self._ranks) and time.monotonic() < deadline:
            time.sleep(TICK_S / 10)
        told = self._told()
        first = {rank: code for rank, code in codes.items() if code != GAVE_UP} or ({} if told else codes)
        said = [*(f"rank {rank} {spelled(code)}" for rank, code in first.items()), *([told] if told else ())]
        from_outside = not told and FROM_OUTSIDE.issuperset(first.values())
        return MeshLost(
            "; ".join(said), from_outside=from_outside, calls=parted(self._rendezvous, self._ranks)
        )

    def _gone_elsewhere(self) -> MeshLost | None:
        """Return which ranks are gone of a mesh that is started from elsewhere: by the failures they posted,
        or because they have joined another mesh."""
        if self._rendezvous.is_past():
            return MeshLost("ranks of the mesh were started again", from_outside=True)
        if not self._rendezvous.failures(self._ranks):
            return None
        time.sleep(GATHER_S)
        told = self._told()
        calls = parted(self._rendezvous, self._ranks)
        if told:
            return MeshLost(told, calls=calls)
        failed = self._rendezvous.failures(self._ranks)
        missing = [rank for rank in self._ranks if rank not in failed] or list(failed)
        return MeshLost(f"rank {', '.join(map(str, missing))} is gone", from_outside=True, calls=calls)

    def _told(self) -> str:
        """Return the reason that a rank posted on the board; ranks that only lost a peer do not know it.
        Empty if there is none."""
        for rank, reason in self._rendezvous.failures(self._ranks).items():
            if reason != PEER_GONE:
                return f"rank {rank}: {reason}"
        return ""

    def _hang(self) -> MeshLost | None:
        """Return which rank is silent, or what takes too long, and write a report of it; None if nothing
        hangs."""
        silent = self._silent()
        since = self.waiting_since()
        limits = self._config.limits
        if silent is not None:
            reason = f"rank {silent} has been silent for {limits.window_s:g} s"
        elif since is not None and time.monotonic() - since > limits.hang_s:
            reason = f"the mesh has not answered for {limits.hang_s:g} s"
        else:
            return None
        self._ask_all(reason)
        lost = MeshLost(reason, from_outside=silent is not None, calls=parted(self._rendezvous, self._ranks))
        self._report(lost.in_full)
        return lost

    def _silent(self) -> int | None:
        """Return the first rank that has sent nothing for the window. Ranks of one machine begin together:
        once one has sent a beat, the others are waited for no longer than that."""
        now = time.monotonic()
        beats = {rank: self._rendezvous.read(f"beat/{rank}") for rank in self._ranks}
        if self._rank_processes is None or not any(beats.values()):
            beats = {rank: beat for rank, beat in beats.items() if beat is not None}
        for rank, beat in beats.items():
            if rank not in self._beats or beat != self._beats[rank][0]:
                self._beats[rank] = beat, now
            elif now - self._beats[rank][1] > self._config.limits.window_s:
                return rank
        return None

    def _ask_all(self, reason: str) -> None:
        """Ask every rank to report what it is doing, and wait as long as a living one takes to notice."""
        self._rendezvous.post("report", reason)
        time.sleep(min(2.0, 2 * self._config.limits.heartbeat_s))

    def _report(self, reason: str) -> None:
        """Write down what each rank has reported; for one that did not answer, its last sign of life."""
        found = {rank: self._rendezvous.read(f"report/{rank}") for rank in self._ranks}
        told: Mapping[int, str] = {rank: text or self._last_sign(rank) for rank, text in found.items()}
        try:
            path = write_report(
                self._config.reports, reason, {**told, FRONT: describe_rank(FRONT, None, "watching")}
            )
        except OSError as error:  # a full disk does not keep a mesh that hangs
            log.error("%s; what each rank was doing cannot be written: %s", reason, error)
        else:
            log.error("%s; what each rank was doing is in %s", reason, path)

    def _last_sign(self, rank: int) -> str:
        beat, _ = self._beats.get(rank, (None, 0.0))
        return f"rank {rank}, when last heard: {beat or 'never'}"
