"""The processes of a mesh on this machine: started, watched, ended. Knows nothing of what they do.

They are forked from a server that has imported torch, so a mesh that was lost is back soon. Several threads
may ask: a process reports only once how it ended, so they ask one after the other.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import ModuleType

from millstream.core.errors import MeshLost
from millstream.mesh.config import MeshConfig
from millstream.mesh.rendezvous import MeetingPoint

PRELOADED = ["millstream.mesh.rank"]
COMPILER = "torch._dynamo"
"""Imported once for all ranks, where they compile: that takes as long as all the rest of a start."""
FROM_OUTSIDE = frozenset({-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP})
"""Exit codes of processes that were ended from outside."""

Run = Callable[[MeshConfig, int, MeetingPoint], None]


def quick_start(*, compiling: bool = False) -> ForkServerContext:
    """Processes that begin with everything imported, from the second one on."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, *_used_by_main(), *([COMPILER] if compiling else [])])
    return context


def _used_by_main() -> list[str]:
    """Modules of ours that the program's own file takes from: each process runs that file again, and would
    import them."""
    taken = vars(sys.modules["__main__"]).values()
    names = {
        each.__name__ if isinstance(each, ModuleType) else getattr(each, "__module__", None) for each in taken
    }
    return sorted(name for name in names if isinstance(name, str) and name.startswith("millstream."))


class RankProcesses:
    def __init__(self, run: Run, config: MeshConfig, meeting: MeetingPoint) -> None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # what goes wrong is said once, in our words
        context = quick_start(compiling=bool(config.compile_backend))
        self._asking = threading.RLock()
        self._codes: dict[int, int] = {}
        """Exit codes of the ranks that have ended."""
        self._processes: dict[int, ForkServerProcess] = {}
        try:
            for rank in config.topology.mesh_ranks:
                name = f"millstream-rank-{rank}"
                process = context.Process(target=run, args=(config, rank, meeting), name=name, daemon=True)
                process.start()
                self._processes[rank] = process
        except (OSError, EOFError) as error:
            self.close()
            raise MeshLost(
                f"rank {rank} could not be started: {error or 'its server is gone'}", from_outside=True
            ) from None
        self.pids = {rank: process.pid or 0 for rank, process in self._processes.items()}

    def codes(self) -> dict[int, int]:
        """Return the exit codes of the ranks that have ended, by rank."""
        with self._asking:
            for rank, process in self._processes.items():
                if process.exitcode is not None:
                    self._codes[rank] = process.exitcode
            return dict(self._codes)

    def wait_for_one(self, timeout_s: float) -> None:
        """Wait until one has ended, or so long."""
        connection.wait([process.sentinel for process in self._processes.values()], timeout_s)

    def wait(self, timeout_s: float) -> None:
        """Wait until all have ended, or so long."""
        deadline = time.monotonic() + timeout_s
        with self._asking:
            for process in self._processes.values():
                process.join(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """Kill all processes, and wait until they have ended."""
        with self._asking:
            for process in self._processes.values():
                process.kill()
            for process in self._processes.values():
                process.join()

    def close(self) -> None:
        """Kill all processes, and release what is held open for them."""
        with self._asking:
            self.kill()
            self.codes()
            for process in self._processes.values():
                process.close()
            self._processes.clear()


def spelled(code: int) -> str:
    if code == -signal.SIGABRT:
        return "was ended by SIGABRT, as gloo does when ranks call collectives of different kinds or shapes"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
