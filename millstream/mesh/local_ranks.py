"""Several ranks as real processes of this machine, for tests, benchmarks and scripts of the course.

A function runs on every rank of one gloo group; its answers come back in the order of ranks. No process is
left behind: a rank ends with the process that started it, however that ends. Ranks that wait for each other
for ever are stopped after a while, and the error says in which line each of them waits.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as torch_processes

from millstream.core.errors import CourseError, MeshError, RankRaised, RanksStuck
from millstream.mesh.rendezvous import MeetingPoint, Rendezvous

WAIT_S = 60.0
STACK_S = 0.3
"""Seconds for a rank to write down where it is."""
EXIT_S = 5.0
"""Seconds for a rank whose pipe is closed to end."""
_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStart:
    """Start parameters of a rank."""

    rank: int
    world: int
    meeting: MeetingPoint
    stack_file: str
    group_timeout_s: float


def on_ranks(
    function: Callable[..., Any],
    world: int,
    *args: Any,
    timeout_s: float = WAIT_S,
    group_timeout_s: float = 2 * WAIT_S,
    port: int = 0,
    missing: Sequence[int] = (),
) -> list[Any]:
    """Call `function(rank, world, *args)` on every rank and return the answers. It must be importable by
    name; its answer travels as a pickle.

    Ranks meet at `port`, by default one that is free. Those in `missing` are never started.
    """
    if not 1 <= world <= 16:
        raise CourseError(f"--world must be 1 to 16 ranks on one machine, got {world}")
    with started(world, group_timeout_s=group_timeout_s, port=port, missing=missing) as ranks:
        ranks.ask(function, *args)
        return ranks.answers(timeout_s)


class StartedRanks:
    """Ranks of one group, which wait for functions until their starter closes their pipes."""

    def __init__(
        self, processes: Sequence[Any], pipes: Sequence[Connection], starts: Sequence[RankStart]
    ) -> None:
        self._processes = processes
        self._pipes = pipes
        self._starts = starts

    def ask(self, function: Callable[..., Any], *args: Any) -> None:
        """Begin `function(rank, world, *args)` on every rank. One at a time: ask again when the answers are
        there."""
        job = pickle.dumps((function, args))
        for pipe in self._pipes:
            with suppress(BrokenPipeError):  # one that is gone already is found out by its missing answer
                pipe.send_bytes(job)

    def kill(self, place: int) -> None:
        self._processes[place].kill()

    def answers(self, timeout_s: float) -> list[Any]:
        """Return the function's answer on every rank. Raises the first failure, and where ranks are that are
        not done in time."""
        deadline = time.monotonic() + timeout_s
        waiting = dict(enumerate(self._pipes))
        found = dict[int, Any]()
        while waiting:
            ready = wait(list(waiting.values()), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                stuck = {
                    self._starts[place].rank: _where(self._processes[place], self._starts[place])
                    for place in waiting
                }
                raise RanksStuck(timeout_s, stuck)
            for place in [place for place, pipe in waiting.items() if pipe in ready]:
                found[place] = self._answer(place, waiting.pop(place))
        return [found[place] for place in range(len(self._pipes))]

    def _answer(self, place: int, pipe: Connection) -> Any:
        rank = self._starts[place].rank
        try:
            problem, answer = pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            self._processes[place].join(EXIT_S)
            code = self._processes[place].exitcode
            raise RankRaised(rank, f"it ended without an answer, exit code {code}") from None
        if problem is not None:
            raise RankRaised(rank, *problem)
        return answer


@contextmanager
def started(
    world: int, *, group_timeout_s: float = 2 * WAIT_S, port: int = 0, missing: Sequence[int] = ()
) -> Iterator[StartedRanks]:
    """Start ranks that are then asked to call functions; all are ended afterwards."""
    context = _context()
    with tempfile.TemporaryDirectory() as folder, _meeting(port) as meeting:
        starts = [
            RankStart(
                rank=rank,
                world=world,
                meeting=meeting,
                stack_file=f"{folder}/{rank}",
                group_timeout_s=group_timeout_s,
            )
            for rank in range(world)
            if rank not in missing
        ]
        pairs = [context.Pipe() for _ in starts]
        processes = [
            context.Process(target=_rank, args=(start, theirs), daemon=True)
            for start, (_, theirs) in zip(starts, pairs, strict=True)
        ]
        try:
            for process, (_, theirs) in zip(processes, pairs, strict=True):
                process.start()
                theirs.close()
            yield StartedRanks(processes, [ours for ours, _ in pairs], starts)
        finally:
            _end_all([process for process in processes if process.pid is not None])
            for ours, _ in pairs:
                ours.close()


def must_divide(count: int, what: str, world: int) -> None:
    """Raise unless a count of something divides evenly over the ranks."""
    if world < 1 or count % world:
        fits = ", ".join(str(n) for n in range(1, min(16, count) + 1) if count % n == 0)
        raise CourseError(f"{count} {what} do not divide over --world {world} ranks; {fits} would")


@contextmanager
def _meeting(port: int) -> Iterator[MeetingPoint]:
    try:
        board = Rendezvous.host(port=port, if_taken="leave --port out and a free one is taken")
    except MeshError as error:
        raise CourseError(str(error)) from None
    try:
        yield board.meeting
    finally:
        board.close()


def _end_all(begun: Sequence[Any]) -> None:
    for (
        process
    ) in begun:  # all of them before any is waited for: a peer that is left would complain about the others
        _kill_group(process.pid)
        process.kill()
    for process in begun:
        process.join()


def _kill_group(leader: int) -> None:
    """Kill a rank and what it has started, such as a compiler. One that has only just begun has no group
    yet."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def _context() -> Any:
    """Ranks are forked from a process that has loaded torch and done nothing with it; where that is not
    known, started anew."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "forkserver" not in torch_processes.get_all_start_methods():
        return torch_processes.get_context("spawn")
    context = torch_processes.get_context("forkserver")
    context.set_forkserver_preload(["millstream.mesh.local_ranks"])
    return context


def _where(process: Any, start: RankStart) -> str:
    """Return the line that a rank is at: its innermost one that is not torch's or Python's own."""
    if not hasattr(signal, "SIGUSR1") or process.pid is None:
        return "unknown"
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGUSR1)
    time.sleep(STACK_S)
    with suppress(OSError):
        for frame in _FRAME.finditer(Path(start.stack_file).read_text()):
            if not frame["path"].startswith((str(Path(torch.__file__).parent), os.path.dirname(os.__file__))):
                return f"{Path(frame['path']).name}:{frame['line']} in {frame['function']}"
    return "unknown"


def _rank(start: RankStart, parent: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us ends us
    if hasattr(os, "setpgid"):  # not on Windows
        with suppress(OSError):
            os.setpgid(0, 0)
    jobs = SimpleQueue[bytes]()
    threading.Thread(target=_listen, args=(parent, jobs), daemon=True).start()
    with open(start.stack_file, "w") as stacks:
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
        while (
            True
        ):  # peers may still need this rank when it has answered; the process that started it lets it go
            answer = _called(jobs.get(), start)
            with suppress(OSError):
                parent.send_bytes(pickle.dumps(answer))


def _called(job: bytes, start: RankStart) -> tuple[tuple[str, str] | None, Any]:
    """Call a job's function. Return the error and its traceback, or None, and the answer."""
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        if not dist.is_initialized():
            _join(start)
        function, args = pickle.loads(job)
        return None, function(start.rank, start.world, *args)
    except BaseException as error:  # a process boundary: the parent reports it
        return (f"{type(error).__name__}: {error}", traceback.format_exc()), None


def _join(start: RankStart) -> None:
    board = Rendezvous.join(start.meeting, timeout_s=WAIT_S)
    timeout = timedelta(seconds=start.group_timeout_s)
    dist.init_process_group(
        "gloo", store=board.store, rank=start.rank, world_size=start.world, timeout=timeout
    )


def _listen(parent: Connection, jobs: SimpleQueue[bytes]) -> None:
    """Read jobs until the other end of the pipe closes, because its process closed it or has ended; then end
    this process too."""
    with suppress(EOFError, OSError):
        while True:
            jobs.put(parent.recv_bytes())
    if hasattr(os, "getpgid") and os.getpgid(0) == os.getpid():
        _kill_group(os.getpid())
    os._exit(0)
