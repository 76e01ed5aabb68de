"""A rank of the mesh watches itself and the front: a process that is silent too long, or hangs, is left
behind.

Two threads, because one of them may be stuck in a store that does not answer: the heart posts and reads signs
of life, the watchdog only looks at clocks. A rank that gives up prints one line and is gone at once; nothing
it could still tidy up is worth another call that may hang.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from millstream.core.mesh_limits import MeshLimits
from millstream.core.topology import FRONT
from millstream.mesh.hang_report import describe_rank, post_calls
from millstream.mesh.rendezvous import Rendezvous
from millstream.parallel.collective_calls import CollectiveRecord

GAVE_UP = 17
"""Exit code of a rank that left by itself."""
TICK_S = 0.05


def give_up(rank: int, reason: str) -> NoReturn:
    print(f"millstream: rank {rank}: {reason}", file=sys.stderr, flush=True)
    os._exit(GAVE_UP)


class Watchdog:
    def __init__(
        self,
        rendezvous: Rendezvous,
        rank: int,
        limits: MeshLimits,
        record: CollectiveRecord,
        *,
        give_up: Callable[[int, str], NoReturn] = give_up,
    ) -> None:
        """`record` holds what this rank calls, once it has groups."""
        self.record = record
        self._rendezvous = rendezvous
        self._rank = rank
        self._limits = limits
        self._give_up = give_up
        self._since = time.monotonic()
        self._heard = (
            self._since + limits.start_s - limits.window_s
        )  # its first word may take as long as a start
        self._doing = ""
        self._stopped = threading.Event()

    def start(self) -> None:
        for work in (self._beat, self._watch):
            threading.Thread(target=work, name=f"millstream-{work.__name__.strip('_')}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    @contextmanager
    def busy(self, doing: str) -> Iterator[None]:
        """Watch something that must be over within `hang_s`."""
        assert not self._doing, f"{doing} begins while {self._doing} is under way"
        self._doing = doing
        self._since = time.monotonic()
        yield
        self._doing = ""

    def _beat(self) -> None:
        """Post that this rank lives, read whether the front does, and answer when it asks what this rank is
        doing."""
        count = 0
        last = None
        answered = False
        try:
            while not self._stopped.is_set():
                count += 1
                self._rendezvous.post(f"beat/{self._rank}", [count, self._summary()])
                heard = self._rendezvous.read(f"beat/{FRONT}")
                if heard != last:
                    last = heard
                    self._heard = time.monotonic()
                if self._rendezvous.is_past():
                    self._give_up(self._rank, "this mesh is over, another begins")
                if not answered and self._rendezvous.read("report"):
                    post_calls(self._rendezvous, self._rank, self.record)
                    self._rendezvous.post(
                        f"report/{self._rank}", describe_rank(self._rank, self.record, self._doing)
                    )
                    answered = True
                self._stopped.wait(self._limits.heartbeat_s)
        except Exception:
            if not self._stopped.is_set():
                self._give_up(self._rank, "the front is gone")

    def _watch(self) -> None:
        limits = self._limits
        while not self._stopped.wait(TICK_S):
            now = time.monotonic()
            if now - self._heard > limits.window_s:
                self._give_up(self._rank, f"the front has been silent for {limits.window_s:g} s")
            if self._doing and now - self._since > limits.hang_s + limits.window_s:
                # the front asks for a report first; this is for when it does not
                print(describe_rank(self._rank, self.record, self._doing), file=sys.stderr, flush=True)
                self._give_up(self._rank, f"{self._doing} took longer than {limits.hang_s:g} s")

    def _summary(self) -> str:
        last = self.record.last[-1] if self.record.last else None
        return f"{self._doing or 'waiting'}; last collective: {last or 'none'}"
