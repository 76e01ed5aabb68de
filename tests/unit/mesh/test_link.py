"""The front's link to a leader: what is posted leaves by itself, and the thread that listens waits for no
device.

Copies from a device are fakes here, of tensors without memory; `tests/gpu/test_front_never_waits.py` has real
ones.
"""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from millstream.core.errors import MeshLost
from millstream.mesh import link as link_module
from millstream.mesh.link import MAX_SENT
from tests.unit.mesh.echo import PATIENCE_S, SHAPE, echo_mesh, parcel

SENDER = "millstream-send"
LINK = "millstream-link"


class SlowCopy:
    """A copy that a device has begun and not made yet."""

    done = threading.Event()
    waited: list[str] = []  # noqa: RUF012 - emptied for each test

    def __init__(self, tensor: Tensor, *, beside: bool) -> None:
        assert beside, "behind what is queued, and before what comes later"
        self._tensor = tensor

    def wait(self) -> Tensor:
        if not self._tensor.is_meta:
            return self._tensor
        self.waited.append(threading.current_thread().name)
        assert self.done.wait(PATIENCE_S)
        return torch.full(self._tensor.shape, 7.0)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[SlowCopy]:
    SlowCopy.done.clear()
    SlowCopy.waited.clear()
    monkeypatch.setattr(link_module, "HostCopy", SlowCopy)
    return SlowCopy


def test_an_answer_is_heard_while_a_device_still_copies_what_leaves_next(slow: type[SlowCopy]) -> None:
    with echo_mesh() as mesh:
        first = mesh.link.post([parcel(1)])
        mesh.heard.get(timeout=PATIENCE_S)
        second = mesh.link.post([parcel(2, torch.empty(SHAPE, device="meta"))])
        mesh.may_answer.release()
        (delivery,) = first.result(PATIENCE_S).deliveries
        assert torch.equal(delivery.latents_out, torch.full(SHAPE, 1.0))
        assert mesh.heard.empty(), "what is not copied has not left"
        slow.done.set()
        mesh.may_answer.release()
        (delivery,) = second.result(PATIENCE_S).deliveries
        assert torch.equal(delivery.latents_out, torch.full(SHAPE, 7.0)), (
            "believed by its checksum on the other side"
        )
    assert slow.waited == [SENDER]


def test_the_next_chunk_leaves_while_an_answer_is_waited_for() -> None:
    with echo_mesh() as mesh:
        for call in range(1, MAX_SENT + 1):
            mesh.link.post([parcel(call)])
            assert mesh.heard.get(timeout=PATIENCE_S).envelopes[0].call_id == call
        last = mesh.link.post([parcel(9)])
        mesh.may_answer.release()
        assert mesh.heard.get(timeout=PATIENCE_S).envelopes[0].call_id == 9, (
            "as soon as the leader takes another"
        )
        for _ in range(MAX_SENT):
            mesh.may_answer.release()
        assert last.result(PATIENCE_S).deliveries[0].result.call_id == 9


def test_what_leaves_stays_in_the_order_of_posts_whoever_is_copied_first(slow: type[SlowCopy]) -> None:
    with echo_mesh() as mesh:
        mesh.link.post([parcel(1, torch.empty(SHAPE, device="meta"))])
        mesh.link.post([parcel(2)])
        slow.done.set()
        assert [mesh.heard.get(timeout=PATIENCE_S).envelopes[0].call_id for _ in range(2)] == [1, 2]


def test_a_mesh_that_is_lost_fails_all_who_wait_and_leaves_no_thread(slow: type[SlowCopy]) -> None:
    with echo_mesh() as mesh:
        futures = [
            mesh.link.post([parcel(1)]),
            mesh.link.post([parcel(2, torch.empty(SHAPE, device="meta"))]),
        ]
        mesh.link.lose(MeshLost("rank 2 was killed"))
        for future in futures:
            with pytest.raises(MeshLost, match="rank 2 was killed"):
                future.result(PATIENCE_S)
        slow.done.set()
    assert not {SENDER, LINK} & {thread.name for thread in threading.enumerate()}


def test_a_link_that_is_told_to_leave_says_goodbye_and_is_gone() -> None:
    with echo_mesh() as mesh:
        assert mesh.link.send_shutdown(PATIENCE_S)
        assert str(mesh.link.lost) == "the mesh was closed"
