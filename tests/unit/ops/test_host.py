"""Copies between a device and host memory, on a device that only writes down what is queued; what a GPU makes
of it is in `tests/gpu/test_front_never_waits.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from millstream.ops import host
from millstream.ops.host import HostCopy, brought

GPU = torch.device("cuda")


class PaperStream:
    def __init__(self, name: str, queued: list[str]) -> None:
        self.name = name
        self._queued = queued

    def record_event(self) -> str:
        self._queued.append(f"{self.name} records")
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self._queued.append(f"{self.name} waits for {event}")


class PaperTensor:
    """On the device, or on its way there."""

    is_cuda = True
    device = GPU
    shape = (2,)
    dtype = torch.float32

    def __init__(self, queued: list[str]) -> None:
        self._queued = queued

    def to(self, device: torch.device, *, non_blocking: bool) -> PaperTensor:
        assert non_blocking, "no thread waits for a copy"
        self._queued.append("copy")
        return self

    def record_stream(self, stream: PaperStream) -> None:
        self._queued.append(f"memory is held for {stream.name}")


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    @contextmanager
    def on(stream: PaperStream) -> Iterator[None]:
        found.append(f"on {stream.name}:")
        yield

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: PaperStream("work", found))
    monkeypatch.setattr(host, "copying_stream", lambda device, way: PaperStream(way, found))
    monkeypatch.setattr(torch.cuda, "stream", on)
    return found


def test_an_answer_is_copied_beside_the_consumers_work_which_waits_until_it_is_done(
    queued: list[str],
) -> None:
    brought(cast(Tensor, PaperTensor(queued)), GPU)
    on, *rest = queued
    assert on == "on back:"
    assert rest == ["copy", "back records", "work waits for event of back", "memory is held for work"]


def test_a_chunk_is_copied_to_the_host_once_its_producer_is_ready(
    queued: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Arrival:
        def __init__(self, *, blocking: bool) -> None: ...

        def record(self, stream: PaperStream) -> None:
            queued.append(f"arrival on {stream.name}")

    class Pinned:
        def copy_(self, tensor: Any, *, non_blocking: bool) -> None:
            assert non_blocking, "no thread waits for a copy"
            queued.append("copy")

    monkeypatch.setattr(torch.cuda, "Event", Arrival)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: Pinned())
    HostCopy(cast(Tensor, PaperTensor(queued)), beside=True)
    assert queued == [
        "work records",
        "there waits for event of work",
        "on there:",
        "copy",
        "arrival on there",
    ]


def test_what_is_in_host_memory_and_stays_there_is_not_copied() -> None:
    x = torch.ones(3)
    assert brought(x, torch.device("cpu")) is x
    assert HostCopy(x, beside=True).wait() is x
