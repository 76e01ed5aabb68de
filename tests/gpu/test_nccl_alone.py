"""NCCL with a group of one rank, on one GPU: capture, replay, abort, timeout, shutdown, restart. Each case is
a process of its own with a time limit: a process that does not end is the failure that is looked for."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(not dist.is_nccl_available(), reason="needs torch with NCCL"),
]

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0


def run(case: str, limit_s: float = LIMIT_S) -> tuple[int, str]:
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.gpu.nccl_alone", case],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        pytest.fail(
            f"{case} was still there after {limit_s:g} s; it had said: {late.stdout!r} {late.stderr!r}"
        )
    return ended.returncode, ended.stdout if ended.returncode == 0 else ended.stdout + ended.stderr


def found(case: str) -> dict[str, Any]:
    """What it printed last, if it ended well."""
    code, said = run(case)
    assert code == 0, said
    answer: dict[str, Any] = json.loads(said.splitlines()[-1])
    return answer


def test_every_collective_of_ours_passes_through_nccl() -> None:
    assert found("collectives") == {"wrong": [], "not on the device": []}


def test_a_collective_is_recorded_once_its_communicator_is_warm_and_replays_on_what_is_there_then() -> None:
    assert found("graph") == {"refused when cold": True, "wrong replays": 0}


def test_fast_blocks_with_sums_inside_are_recorded_and_the_process_ends_after_them() -> None:
    answer = found("blocks")
    assert answer["error"] < 1e-3, "one rank's sums change nothing"
    assert answer["recordings"] >= 2, "steps and commits"
    assert answer["refused while they were held"], (
        "a communicator is not destroyed under a graph that uses it"
    )


def test_a_group_starts_again_in_one_process_after_its_end_and_after_an_abort() -> None:
    assert found("restart") == {"sums": [8.0, 8.0, 8.0]}


def test_a_collective_that_takes_longer_than_its_limit_ends_the_process() -> None:
    code, said = run("timeout")
    assert code == -signal.SIGABRT, f"its watchdog aborts it; exit code {code}, and it said:\n{said}"
