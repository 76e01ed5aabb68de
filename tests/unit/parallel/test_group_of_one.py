"""A group of one rank over a real backend: every collective passes through it, and recorded calls keep the
order that NCCL asks for. Here over gloo, in this process; `tests/gpu/test_nccl_alone.py` does the same over
NCCL, with graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from millstream.core.speed import Speed
from millstream.core.topology import LOCAL
from millstream.models.fast.apply import quicken
from millstream.models.fast.recorded import RecordedStack
from millstream.parallel.apply import disconnect
from millstream.parallel.collectives import GLOO, RankGroup
from millstream.parallel.fast_tensor import TensorSpread
from millstream.parallel.groups import Groups, create_groups, leave_groups
from millstream.parallel.mesh_dit import MeshDiT
from tests.dist.calls import FOUR_HEADS, flows
from tests.unit.models_for_tests import dit, relative_error

Run = Callable[[], object]


def tape(run: Run) -> Run:
    """Records on a CPU: a replay is the call again."""
    run()
    return run


@pytest.fixture
def groups() -> Iterator[Groups]:
    made = groups_of_one(GLOO)
    yield made
    if dist.is_initialized():
        dist.destroy_process_group()


def groups_of_one(backend: str) -> Groups:
    """All of them this process, and each with a backend."""
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    made = create_groups(LOCAL)
    for group in made.all_groups():
        group.handle = dist.group.WORLD
    return made


def say_all(group: RankGroup, x_LD: Tensor) -> dict[str, Tensor]:
    """Every collective that a block or a stage may make; of one rank, each gives back what it was given."""
    whole = torch.empty_like(x_LD)
    group.collect_into(whole, x_LD, "test")
    return {
        "sum": group.sum(x_LD.clone(), "test"),
        "start_sum": group.start_sum(x_LD.clone(), "test").wait(),
        "sum_rows": group.sum_rows(x_LD, "test"),
        "collect_rows": group.collect_rows(x_LD, "test"),
        "collect_into": whole,
        "exchange": group.exchange(x_LD[None], "test")[0],
        "collect": group.collect(x_LD, "test")[0],
        "broadcast": group.broadcast(x_LD.clone(), source=group.rank, what="test"),
    }


def test_every_collective_passes_through_the_backend_of_a_group_of_one(groups: Groups) -> None:
    x = torch.randn(4, 3)
    for name, found in say_all(groups.mesh, x).items():
        assert torch.equal(found, x), name
    assert groups.record.counts.total() == 8, "one is recorded for each: none was left out"
    assert groups.mesh.gather("here", "test") == ["here"]


def test_a_group_without_a_backend_says_nothing() -> None:
    alone = create_groups(LOCAL).mesh
    x = torch.randn(4, 3)
    assert all(torch.equal(found, x) for found in say_all(alone, x).values())
    assert not alone.record.counts


def test_a_call_is_recorded_only_over_a_communicator_that_is_there(groups: Groups) -> None:
    group = groups.stage
    x = torch.ones(2)
    record = group.recorder(tape)
    with pytest.raises(AssertionError, match="stage0 was never spoken on"):
        record(lambda: None)
    group.sum(x, "test")
    assert record(lambda: group.sum(x, "test"))() is x


def test_groups_are_left_only_when_nobody_holds_a_recording_over_them(groups: Groups) -> None:
    groups.stage.sum(torch.ones(2), "test")
    held = groups.stage.recorder(tape)(lambda: None)
    with pytest.raises(AssertionError, match="1 recorded calls are held over group stage0"):
        leave_groups(groups)
    assert dist.is_initialized()
    del held
    leave_groups(groups)
    assert not dist.is_initialized()
    again = groups_of_one(GLOO)
    assert torch.equal(again.mesh.sum(torch.ones(2), "test"), torch.ones(2)), "a group may be made again"


def test_fast_blocks_are_recorded_over_a_group_and_forgotten_before_it_is_left(groups: Groups) -> None:
    spread = TensorSpread(groups.stage)
    speed = Speed(blocks=True)
    fast = quicken(dit(FOUR_HEADS), speed, spread)
    whole = dit(FOUR_HEADS).blocks
    fast.blocks = RecordedStack(whole, Speed(blocks=True, graphs=True), spread.recorder(tape), spread)
    share = MeshDiT(fast, groups.stage)
    expected = flows(quicken(dit(FOUR_HEADS), speed), 14, window=6, sink=0)
    assert relative_error(flows(share, 14, window=6, sink=0), expected) < 1e-5
    assert len(groups.stage.recordings) >= 2, "steps and commits"
    disconnect(share, groups)
    assert not groups.stage.recordings
    assert not dist.is_initialized()
