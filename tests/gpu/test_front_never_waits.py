"""Envelopes and latents pass between front and mesh while a GPU is busy: no thread of the link waits for it
in secret."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch

from millstream.mesh.recovery import MeshTransport
from millstream.ops.host import HostCopy, brought, copying_stream
from tests.gpu.sync_guard import HIDDEN, SyncGuard
from tests.unit.mesh.echo import PATIENCE_S, SHAPE, EchoMesh, echo_mesh, parcel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

GPU = torch.device("cuda")
A_SECOND = 2_000_000_000
"""Cycles, about."""
MAIN = "MainThread"
LINK = "millstream-link"
SENDER = "millstream-send"


@pytest.fixture
def mesh() -> Iterator[EchoMesh]:
    with echo_mesh() as made:
        for _ in range(100):
            made.may_answer.release()
        yield made


def waits_of(work: Callable[[], object]) -> list[str]:
    """Of a thread that does only that."""
    with SyncGuard() as guard:
        thread = threading.Thread(target=work, name="watched")
        thread.start()
        thread.join(PATIENCE_S)
    return guard.waits["watched"]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: x.sum().item(),
        lambda x: torch.ones(4).to(x.device),
        lambda x: torch.ones(4, pin_memory=True).to(x.device),
        lambda x: torch.cuda.synchronize(),
        lambda x: torch.cuda.current_stream().synchronize(),
        lambda x: HostCopy(x).wait(),
    ],
)
def test_the_guard_sees_every_way_to_wait(work: Callable[[torch.Tensor], object]) -> None:
    x = torch.ones(4, device=GPU)
    torch.cuda.synchronize()
    assert waits_of(lambda: work(x)) != []


def test_the_guard_says_nothing_of_copies_that_nobody_waits_for() -> None:
    x = torch.ones(4, device=GPU)
    there = torch.ones(4, pin_memory=True)
    assert waits_of(lambda: (HostCopy(x, beside=True), there.to(GPU, non_blocking=True))) == []


def test_a_chunk_leaves_and_its_answer_is_heard_while_the_device_is_busy_with_other_work(
    mesh: EchoMesh,
) -> None:
    transport = MeshTransport(lambda: mesh, GPU)
    transport.post([parcel(1, torch.ones(SHAPE, device=GPU))]).result()  # pinned memory is there, streams too
    torch.cuda.synchronize()
    sent = torch.randn(SHAPE, device=GPU)
    with SyncGuard() as guard:
        posted = transport.post([parcel(2, sent)])
        torch.cuda._sleep(A_SECOND)  # as pictures do that are made meanwhile
        busy = torch.cuda.Event()
        busy.record()
        (delivery,) = posted.result()
        assert not busy.query(), "it was there and back while the device was busy"
    assert torch.equal(delivery.latents_out, sent)
    assert delivery.latents_out.device.type == "cuda"
    assert guard.waits[LINK] == [], "the link's thread waits for nothing of a device"
    assert guard.waits[MAIN] == [], "nor does whoever posts and takes the answer"
    assert set(guard.waits[SENDER]) <= {"Event.synchronize"}, "the sender waits for the copy that it sends"


def test_what_a_device_still_makes_leaves_as_soon_as_it_is_made_and_not_before(mesh: EchoMesh) -> None:
    transport = MeshTransport(lambda: mesh, GPU)
    transport.post([parcel(1, torch.ones(SHAPE, device=GPU))]).result()
    torch.cuda.synchronize()
    made = torch.zeros(SHAPE, device=GPU)
    with SyncGuard() as guard:
        torch.cuda._sleep(A_SECOND // 10)
        made += 3
        posted = transport.post([parcel(2, made)])
        torch.cuda._sleep(A_SECOND)
        (delivery,) = posted.result()
    assert torch.equal(delivery.latents_out, torch.full(SHAPE, 3.0, device=GPU))
    assert not any(wait.startswith(HIDDEN) for name in (LINK, SENDER, MAIN) for wait in guard.waits[name])


def warm_up(host: torch.Tensor) -> None:
    """Streams are there, and memory for two answers."""
    both = [brought(host, GPU) for _ in range(2)]
    doubled = [2 * each for each in both]
    torch.cuda.synchronize()
    del both, doubled


def until_copied(way: Literal["there", "back"]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not copying_stream(GPU, way).query():
        assert time.monotonic() < deadline, f"the copy {way} does not end"
        time.sleep(0.001)


def test_an_answer_is_on_the_device_before_the_work_that_was_queued_there_and_for_all_that_is_queued_after_it() -> (
    None
):
    host = torch.randn(SHAPE).pin_memory()
    busy = torch.cuda.Event()
    warm_up(host)
    torch.cuda._sleep(A_SECOND)
    busy.record()
    with SyncGuard() as guard:
        there = brought(host, GPU)
        doubled = 2 * there
    until_copied("back")
    assert not busy.query(), "done, beside what the device does"
    assert torch.equal(doubled.cpu(), 2 * host)
    assert guard.waits[MAIN] == []


def test_an_answers_memory_is_not_given_out_again_before_it_was_read() -> None:
    host = torch.randn(SHAPE).pin_memory()
    zeros = torch.zeros(SHAPE).pin_memory()
    warm_up(host)
    torch.cuda._sleep(A_SECOND)
    there = brought(host, GPU)
    doubled = 2 * there
    place = there.data_ptr()
    del there
    again = brought(zeros, GPU)
    assert again.data_ptr() != place
    assert torch.equal(doubled.cpu(), 2 * host)


def test_an_answer_does_not_wait_behind_a_chunk_that_is_still_being_made() -> None:
    host = torch.randn(SHAPE).pin_memory()
    busy = torch.cuda.Event()
    made = torch.zeros(SHAPE, device=GPU)
    HostCopy(made, beside=True).wait()
    warm_up(host)
    torch.cuda._sleep(A_SECOND)
    made += 1
    busy.record()
    leaving = HostCopy(made, beside=True)
    there = brought(host, GPU)
    until_copied("back")
    assert not busy.query()
    assert torch.equal(leaving.wait(), torch.ones(SHAPE))
    assert torch.equal(there.cpu(), host)
