"""The harness itself, and the groups every other test stands on: real processes, real gloo."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest
import torch

from millstream.core.errors import CollectiveRefused, RanksStuck
from millstream.core.topology import Topology
from millstream.parallel.collective_calls import KEPT
from millstream.parallel.collectives import RankGroup
from millstream.parallel.groups import create_groups
from tests.dist.ranks import RankFailed, end_kept_ranks, run_on_kept_ranks, run_ranks

TOPOLOGY = Topology.parse("front+pp2xtp2")


def all_collectives(rank: int, by_copies: bool) -> dict[str, object]:
    """Every kind once, on the groups of a mesh with two stages of two, as if tensors had to pass through
    other memory."""
    if by_copies:
        RankGroup._on_wire = lambda self, x: x.clone()
    groups = create_groups(TOPOLOGY, rank, timeout_s=20)
    found: dict[str, object] = {"world": groups.world.gather(rank, "who is there")}
    if rank == 0:
        return found
    stage = groups.stage
    lane = groups.lane
    mine = torch.tensor([float(rank)])
    found["sum"] = stage.sum(mine.clone(), "test").tolist()
    found["collect"] = stage.collect(mine, "test").tolist()
    found["exchange"] = stage.exchange(torch.tensor([[10.0 * rank], [10.0 * rank + 1]]), "test").tolist()
    found["broadcast"] = groups.mesh.broadcast(mine.clone(), source=3, what="test").tolist()
    peer = next(other for other in lane.ranks if other != rank)
    received = torch.zeros(1)
    pending = [lane.send(mine, to=peer, what="test"), lane.receive(received, source=peer, what="test")]
    for each in pending:
        each.wait()
    found["received"] = received.tolist()
    found["waiting"] = [str(called) for called in groups.record.last if not called.done]
    return found


@pytest.mark.parametrize("by_copies", [False, True])
def test_every_collective_reaches_the_ranks_of_its_group_and_nobody_else(by_copies: bool) -> None:
    front, *mesh = run_ranks(all_collectives, 5, by_copies)
    assert front == {"world": [0, 1, 2, 3, 4]}
    assert [found["sum"] for found in mesh] == [[3.0], [3.0], [7.0], [7.0]]
    assert [found["collect"] for found in mesh] == [[[1.0], [2.0]]] * 2 + [[[3.0], [4.0]]] * 2
    assert [found["exchange"] for found in mesh[:2]] == [[[10.0], [20.0]], [[11.0], [21.0]]]
    assert [found["broadcast"] for found in mesh] == [[3.0]] * 4
    assert [found["received"] for found in mesh] == [[3.0], [4.0], [1.0], [2.0]]
    assert all(found["waiting"] == [] for found in mesh)


def fail_on_one(rank: int) -> None:
    if rank == 1:
        raise ValueError("rank one is out of water")
    time.sleep(600)


def leave_without_a_word(rank: int) -> None:
    if rank == 1:
        os._exit(7)
    time.sleep(600)


def wait_for_ever(rank: int) -> None:
    time.sleep(600)


def test_the_first_traceback_ends_a_test_and_leaves_no_process() -> None:
    began = time.monotonic()
    before = set(multiprocessing.active_children())
    with pytest.raises(
        RankFailed, match=r"(?s)rank 1 failed: ValueError: rank one is out of water.*in fail_on_one"
    ):
        run_ranks(fail_on_one, 2, timeout_s=30)
    with pytest.raises(RankFailed, match="rank 1 failed: it ended without an answer, exit code 7"):
        run_ranks(leave_without_a_word, 2, timeout_s=30)
    with pytest.raises(RanksStuck, match=r"not done after 0.5 s: rank 0 waits at .*; rank 1 waits at"):
        run_ranks(wait_for_ever, 2, timeout_s=0.5)
    assert set(multiprocessing.active_children()) == before
    assert time.monotonic() - began < 300, "nobody waits for those that sleep"


def own_pid(rank: int) -> int:
    return os.getpid()


def test_kept_ranks_are_the_same_processes_until_one_fails_or_they_are_ended() -> None:
    before = set(multiprocessing.active_children())
    first = run_on_kept_ranks(own_pid, 2)
    assert run_on_kept_ranks(own_pid, 2) == first
    with pytest.raises(RankFailed, match="rank one is out of water"):
        run_on_kept_ranks(fail_on_one, 2)
    assert not set(run_on_kept_ranks(own_pid, 2)) & set(first)
    end_kept_ranks()
    assert set(multiprocessing.active_children()) == before


def group(purpose: str = "mesh", ranks: tuple[int, ...] = (1, 2), rank: int = 1) -> RankGroup:
    """Without a backend: whatever reaches it fails with an assertion, not with a refusal."""
    return RankGroup("these", purpose, ranks, rank, None)


def test_a_mesh_collective_on_the_world_is_refused_before_the_backend() -> None:
    with pytest.raises(
        CollectiveRefused, match=r"no sum of \[\d.*\] on group these \(1, 2\): the group is for start-up"
    ):
        group("start-up").sum(torch.zeros(1), "attention")


def test_an_ad_hoc_broadcast_inside_a_block_is_refused() -> None:
    mesh = group()
    with mesh.inside_blocks():
        with pytest.raises(
            CollectiveRefused, match="inside a block, which may only collect, exchange, scatter, sum"
        ):
            mesh.broadcast(torch.zeros(1), source=1, what="debug")
        with pytest.raises(AssertionError, match="was not made"):
            mesh.sum(torch.zeros(1), "attention")
    with pytest.raises(AssertionError, match="was not made"):
        mesh.broadcast(torch.zeros(1), source=1, what="parcel")


def test_a_foreign_group_and_a_foreign_peer_are_refused() -> None:
    with pytest.raises(CollectiveRefused, match="rank 3 is not in group these"):
        group(rank=3).sum(torch.zeros(1), "attention")
    for peer in (1, 5):
        with pytest.raises(CollectiveRefused, match=f"no peer {peer}"):
            group().send(torch.zeros(1), to=peer, what="activations")


def test_alone_every_collective_is_nothing() -> None:
    alone = create_groups(Topology()).mesh
    x = torch.ones(2, 3)
    assert alone.sum(x, "x") is x
    assert alone.exchange(x[None], "x").shape == (1, 2, 3)
    assert torch.equal(alone.collect(x, "x")[0], x)
    assert alone.gather("me", "x") == ["me"]
    assert alone.broadcast(x, source=0, what="x") is x


def test_the_record_counts_all_and_keeps_the_last() -> None:
    mesh = group()
    for _ in range(3 * KEPT):
        mesh.record.begin("sum", "attention", mesh, (2, 3))
    assert mesh.record.counts == {("sum", "attention"): 3 * KEPT}
    assert len(mesh.record.last) == KEPT
    assert f"#{3 * KEPT} sum (attention) on these (1, 2), shape (2, 3): waiting for" in str(
        mesh.record.last[-1]
    )
