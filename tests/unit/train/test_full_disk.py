"""A disk on which nothing more can be written ends a run in one line, and what was saved before stays."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from millstream.commands.train.run_folder import writing_to
from millstream.core.errors import NotKept
from millstream.train.checkpoint import save_checkpoint
from millstream.train.parallel.plan import ParallelPlan
from tests.soak.train_equality import train


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow past a few bytes: writes fail where a full disk fails them."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    train(0, "two-blocks", ParallelPlan(), 2, tmp_path)
    with (
        full_disk(),
        pytest.raises(NotKept, match=r"cannot write .*step-00000004: .*goes on from what is saved"),
    ):
        train(0, "two-blocks", ParallelPlan(), 4, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"], "and nothing half written"
    assert len(train(0, "two-blocks", ParallelPlan(), 4, tmp_path).losses) == 2, (
        "it goes on when there is room"
    )


def test_a_stage_of_brook_that_cannot_be_saved_says_so(tmp_path: Path) -> None:
    module = torch.nn.Linear(100, 100)
    with full_disk(), pytest.raises(NotKept, match=r"cannot write .*stage.pt: "):
        save_checkpoint(tmp_path / "stage.pt", 1, {"weights": module.state_dict()})
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with (
        pytest.raises(NotKept, match=r"the run in .*run has ended: .*choose another --out"),
        writing_to(tmp_path / "run"),
    ):
        pass
