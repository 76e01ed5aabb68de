"""Envelopes and latents pass between front and mesh while a GPU is busy: no thread of the link waits for it in secret."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from millstream.mesh.recovery import MeshTransport
from millstream.ops.host import HostCopy
from tests.gpu.sync_guard import HIDDEN, SyncGuard
from tests.unit.mesh.echo import PATIENCE_S, SHAPE, EchoMesh, echo_mesh, parcel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

GPU = torch.device("cuda")
A_SECOND = 2_000_000_000
"""Cycles, about."""
MAIN, LINK, SENDER = "MainThread", "millstream-link", "millstream-send"


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
    x, there = torch.ones(4, device=GPU), torch.ones(4, pin_memory=True)
    assert waits_of(lambda: (HostCopy(x, beside=True), there.to(GPU, non_blocking=True))) == []


def test_a_chunk_leaves_and_its_answer_is_heard_while_the_device_is_busy_with_other_work(mesh: EchoMesh) -> None:
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
