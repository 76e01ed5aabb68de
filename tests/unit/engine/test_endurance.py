"""A stream has no length limit. The benchmark of the same name runs many times as long and times it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.soak.endurance import LongStream, tiny_engine

pytestmark = pytest.mark.slow


GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_TRIM_THRESHOLD_": "16384", "MALLOC_ARENA_MAX": "1"}
"""What is resident is what is held, then; otherwise the allocator keeps a hundredth more on busy cores than
on idle ones."""


def test_memory_stays_where_it_was_after_warm_up(tmp_path: Path) -> None:
    code = (
        "import json, sys, torch; from pathlib import Path; from tests.soak.endurance import endure;"
        "torch.set_num_threads(1); print(json.dumps(endure(300, 100, 1, Path(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | GIVES_BACK)
    assert json.loads(done.stdout)["resident_growth"] < 0.0025, (
        "as much a chunk as 1% of the benchmark's first thousand"
    )


class Operations(TorchDispatchMode):
    """Every operation and the shapes it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[torch.Size, ...]]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        self.seen.append((str(function), tuple(arg.shape for arg in args if isinstance(arg, torch.Tensor))))
        return function(*args, **(kwargs or {}))


def test_a_late_chunk_does_exactly_what_an_early_one_did(tmp_path: Path) -> None:
    stream = LongStream(tiny_engine(), tmp_path, "long")
    recorded = []
    for number in range(40):
        if number in (10, 39):
            with Operations() as operations:
                stream.advance(steered=False)
            recorded.append(operations.seen)
        else:
            stream.advance(steered=False)
    stream.close()
    early, late = recorded
    assert len(early) > 100
    assert early == late
