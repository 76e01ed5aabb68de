"""Real processes with a real process group for tests: a function runs on every rank, its answers come back in order.

A rank that raises ends the others, and the test shows its traceback. Nothing outlives its time: whoever is not done by
then is killed, and the test fails. Processes are forked from a server that has imported torch, so a start is quick. Those
that stay for the next function of a module (`run_on_kept_ranks`) start once, and torch's first calls are paid once.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch.distributed",
        "pytest",
        "hypothesis",
        "tests.unit.models_for_tests",
        "millstream.parallel.training.checkpoint",
    ]
)


class RankFailed(AssertionError):
    """The first rank that raised, exited or was not done in time."""


class Ranks:
    """Processes of one group, rank by rank, and the folder that they meet in."""

    def __init__(
        self, processes: Sequence[Any], connections: Sequence[Connection], folder: tempfile.TemporaryDirectory[str]
    ) -> None:
        self.processes, self._connections, self._folder = processes, connections, folder

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()

    def ask(self, function: Callable[..., Any], *args: Any) -> None:
        """Begin `function(rank, *args)` on every rank."""
        for connection in self._connections:
            connection.send_bytes(pickle.dumps((function, args)))

    def answers(self, timeout_s: float) -> list[Any]:
        """What the function gave on every rank, or the first failure."""
        deadline, waiting = time.monotonic() + timeout_s, dict(enumerate(self._connections))
        found: dict[int, Any] = {}
        while waiting:
            ready = wait(list(waiting.values()), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RankFailed(f"ranks {sorted(waiting)} were not done in {timeout_s} s; {sorted(found)} were")
            for rank in [rank for rank, connection in waiting.items() if connection in ready]:
                found[rank] = self._answer(rank, waiting.pop(rank))
        return [found[rank] for rank in range(len(self.processes))]

    def release(self) -> None:
        """Let those that have answered go; until then they stay, so that nobody misses a peer while still starting."""
        for connection in self._connections:
            connection.close()

    def seconds_until_gone(self, timeout_s: float) -> float:
        """How long until no process is left; those that stay longer than `timeout_s` are a failure."""
        self.release()
        began = time.monotonic()
        for process in self.processes:
            process.join(max(0.0, began + timeout_s - time.monotonic()))
        left = [rank for rank, process in enumerate(self.processes) if process.is_alive()]
        if left:
            raise RankFailed(f"ranks {left} were still there after {timeout_s} s")
        return time.monotonic() - began

    def end(self) -> None:
        """No process is left afterwards."""
        for process in self.processes:
            process.kill()
            process.join()
        self.release()
        self._folder.cleanup()

    def _answer(self, rank: int, connection: Connection) -> Any:
        try:
            ok, answer = pickle.loads(connection.recv_bytes())
        except EOFError:
            self.processes[rank].join(5.0)
            raise RankFailed(f"rank {rank} ended without an answer, exit code {self.processes[rank].exitcode}") from None
        if not ok:
            raise RankFailed(f"rank {rank} raised:\n{answer}")
        return answer


def start(size: int, group_timeout_s: float = 60.0) -> Ranks:
    """`size` ranks of one gloo process group, which wait for functions."""
    folder = tempfile.TemporaryDirectory()
    store = Path(folder.name) / "rendezvous"
    pairs = [_CONTEXT.Pipe() for _ in range(size)]
    processes = [
        _CONTEXT.Process(target=_serve, args=(rank, size, str(store), group_timeout_s, theirs), daemon=True)
        for rank, (_, theirs) in enumerate(pairs)
    ]
    for process in processes:
        process.start()
    for _, theirs in pairs:
        theirs.close()
    return Ranks(processes, [ours for ours, _ in pairs], folder)


@contextmanager
def started(function: Callable[..., Any], size: int, *args: Any, group_timeout_s: float = 60.0) -> Iterator[Ranks]:
    """`function(rank, *args)` on `size` ranks of one gloo process group; no process is left afterwards.

    The function must be importable by name. Its answer travels as a pickle.
    """
    ranks = start(size, group_timeout_s)
    try:
        ranks.ask(function, *args)
        yield ranks
    finally:
        ranks.end()


def run_ranks(function: Callable[..., Any], size: int, *args: Any, timeout_s: float = 60.0) -> list[Any]:
    """`function(rank, *args)` on `size` ranks; their answers in the order of ranks."""
    with started(function, size, *args) as ranks:
        return ranks.answers(timeout_s)


_KEPT: dict[int, Ranks] = {}
"""By their number; `tests/dist/conftest.py` ends them with the module that used them."""


def run_on_kept_ranks(function: Callable[..., Any], size: int, *args: Any, timeout_s: float = 60.0) -> list[Any]:
    """As `run_ranks`, on processes that stay. For functions that leave nothing behind but process groups."""
    if size not in _KEPT:
        _KEPT[size] = start(size)
    try:
        _KEPT[size].ask(function, *args)
        return _KEPT[size].answers(timeout_s)
    except BaseException:
        _KEPT.pop(size).end()  # nobody knows where the others are
        raise


def end_kept_ranks() -> None:
    while _KEPT:
        _KEPT.popitem()[1].end()


def _serve(rank: int, size: int, store: str, group_timeout_s: float, parent: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    with suppress(OSError, EOFError):  # the parent lets go
        while True:
            function, args = pickle.loads(parent.recv_bytes())
            torch.manual_seed(0)
            try:
                if not dist.is_initialized():
                    timeout = timedelta(seconds=group_timeout_s)
                    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timeout)
                answer = True, function(rank, *args)
            except BaseException:
                answer = False, traceback.format_exc()
            parent.send_bytes(pickle.dumps(answer))
    # No destroy_process_group: a peer may be gone, and then it would wait for it.
    os._exit(0)
