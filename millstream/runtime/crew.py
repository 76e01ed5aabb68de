"""The processes of a mesh on this machine: started, looked after, ended. Knows nothing of what they do.

They are forked from a server that has imported torch, so a mesh that was lost is back soon.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess

from millstream.runtime.board import Meeting
from millstream.runtime.mesh_config import MeshConfig

PRELOADED = ["millstream.runtime.rank", "torch._dynamo"]
"""The second because the first empty tensor of a model pulls it in, and that takes longer than all the rest of a start."""

Run = Callable[[MeshConfig, int, Meeting], None]


def quick_start() -> ForkServerContext:
    """Processes that begin with everything imported, from the second one on."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


class Crew:
    def __init__(self, run: Run, config: MeshConfig, meeting: Meeting) -> None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # what goes wrong is said once, in our words
        context = quick_start()
        self._processes: dict[int, ForkServerProcess] = {
            rank: context.Process(target=run, args=(config, rank, meeting), name=f"millstream-rank-{rank}", daemon=True)
            for rank in config.topology.mesh_ranks
        }
        for process in self._processes.values():
            process.start()

    @property
    def pids(self) -> dict[int, int]:
        return {rank: process.pid or 0 for rank, process in self._processes.items()}

    def ended(self) -> dict[int, str]:
        """Who is not there any more, and how they went."""
        codes = {rank: process.exitcode for rank, process in self._processes.items()}
        return {rank: _spelled(code) for rank, code in codes.items() if code is not None}

    def wait(self, timeout_s: float) -> bool:
        """Whether all have left by then."""
        deadline = time.monotonic() + timeout_s
        for process in self._processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
        return len(self.ended()) == len(self._processes)

    def kill(self) -> None:
        """Nobody is there afterwards."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()


def _spelled(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
