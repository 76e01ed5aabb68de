"""Ranks of the course's scripts: what fails is said, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from millstream.core.errors import CourseError, RankRaised, RanksStuck
from millstream.mesh.local_ranks import on_ranks, started

pytestmark = pytest.mark.slow


def fails_on_one(rank: int, world: int) -> int:
    if rank == 1:
        raise ValueError("on purpose")
    dist.barrier()
    return rank


def one_never_comes(rank: int, world: int) -> None:
    if rank == 0:
        dist.barrier()


def test_a_rank_that_raises_ends_the_others_and_is_named() -> None:
    with pytest.raises(RankRaised, match="rank 1 failed: ValueError: on purpose"):
        on_ranks(fails_on_one, 2)


def test_ranks_that_wait_for_ever_are_stopped_and_their_line_is_named() -> None:
    with pytest.raises(RanksStuck) as raised:
        on_ranks(one_never_comes, 2, timeout_s=12.0)
    assert list(raised.value.waiting) == [0]
    assert "in one_never_comes" in raised.value.waiting[0]


def sum_of_ranks(rank: int, world: int, more: int) -> float:
    found = torch.tensor(float(rank + more))
    dist.all_reduce(found)
    return float(found)


def test_ranks_that_are_asked_again_are_the_same_group() -> None:
    with started(2) as ranks:
        for more in (0, 10):
            ranks.ask(sum_of_ranks, more)
            assert ranks.answers(60) == [1.0 + 2 * more] * 2


def starts_a_program(rank: int, world: int) -> int:
    return subprocess.Popen(["sleep", "60"]).pid


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_what_a_rank_has_started_ends_with_it() -> None:
    started = on_ranks(starts_a_program, 2)
    _until(lambda: not any(map(_runs, started)), 10)


def _runs(pid: int) -> bool:
    """Not one that has ended and whose parent is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text() != ""
    except OSError:
        return False


def test_too_many_ranks_are_refused() -> None:
    with pytest.raises(CourseError, match="must be 1 to 16 ranks"):
        on_ranks(fails_on_one, 99)


@pytest.mark.course
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_when_a_script_is_interrupted_or_killed(how: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    script = [sys.executable, "-m", "millstream", "course", "run", "2", "deadlock", "--patience", "100"]
    program = subprocess.Popen(
        script, env=os.environ | {"COURSE_MARK": mark}, stderr=subprocess.PIPE, text=True
    )
    try:
        _until(lambda: len(_marked(mark)) >= 4, 60)  # the program, its fork server, its tracker, two ranks
        time.sleep(0.5)
        program.send_signal(how)
        _, said = program.communicate(timeout=30)
    finally:
        program.kill()
    assert how == signal.SIGKILL or (program.returncode == 130 and said.strip().endswith("stopped"))
    _until(lambda: not _marked(mark), 20)


def _marked(mark: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_text(errors="replace"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def _until(holds: object, seconds: float) -> None:
    assert callable(holds)
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not come to that"
        time.sleep(0.1)
