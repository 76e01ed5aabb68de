"""What a generator has made, while a device may still be at work on it, and how that becomes deliveries.

Waiting for latents is not waiting for the commit behind them: pictures can be queued, or sent for, meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from millstream.core.envelope import Envelope, Result
from millstream.ops.host import HostCopy
from millstream.wire.parcel import Delivery, digest


class Brought(NamedTuple):
    """Latents on their way to the host, and whether they are finite: looked at where they are, for a device would stand still
    while the host's threads gather to do it."""

    latents: HostCopy
    finite: HostCopy

    @staticmethod
    def of(latents: Tensor) -> Brought:
        return Brought(HostCopy(latents), HostCopy(torch.isfinite(latents).all()))


class Made(NamedTuple):
    """A chunk's clean latents, where they were made and on their way to the host, and the model calls they took."""

    latents: Tensor
    calls: int
    brought: Brought

    def read(self) -> ReadBack:
        """What its latents are. Waits for them, not for the commit behind them."""
        there, finite = self.brought.latents.wait(), self.brought.finite.wait()
        return ReadBack(self.latents, self.calls, digest(there), bool(finite))


class ReadBack(NamedTuple):
    latents: Tensor
    calls: int
    fingerprint: str
    finite: bool

    def delivery(self, envelope: Envelope, *, stage1_ms: float, idle_ms: float) -> Delivery:
        """What it is answered with."""
        if not self.finite:
            error = f"chunk {envelope.chunk_index} came out with latents that are not finite; try --dtype float32"
            return Delivery(result=result_of(envelope, error, self.calls, stage1_ms, idle_ms, ""))
        result = result_of(envelope, "", self.calls, stage1_ms, idle_ms, self.fingerprint)
        return Delivery(result=result, latents_out=self.latents)


@dataclass(frozen=True, slots=True)
class Begun:
    """Chunks that a device works on, each with what comes of it, or why it was refused."""

    answers: Sequence[tuple[Envelope, Made | str]]
    begun: float
    idle_s: float
    rest: Callable[[], None]

    def ahead(self) -> list[Tensor]:
        """The latents of those that were not refused, on which a device may still be at work."""
        return [made.latents for _, made in self.answers if isinstance(made, Made)]

    def result(self) -> list[Delivery]:
        """Waits for all latents."""
        readings = [(envelope, made.read() if isinstance(made, Made) else made) for envelope, made in self.answers]
        self.rest()
        took_ms, idle_ms = 1000.0 * (time.perf_counter() - self.begun), 1000.0 * self.idle_s
        return [
            Delivery(result=result_of(envelope, found, 0, took_ms, idle_ms, ""))
            if isinstance(found, str)
            else found.delivery(envelope, stage1_ms=took_ms, idle_ms=idle_ms)
            for envelope, found in readings
        ]


def result_of(envelope: Envelope, error: str, calls: int, stage1_ms: float, idle_ms: float, fingerprint: str) -> Result:
    """What a chunk is answered with, beside its latents."""
    assert bool(error) != bool(fingerprint), f"an answer has an error or a fingerprint: {error!r}, {fingerprint!r}"
    return Result(
        call_id=envelope.call_id,
        session_id=envelope.session_id,
        chunk_index=envelope.chunk_index,
        cache_epoch=envelope.cache_epoch,
        ok=not error,
        error=error,
        observed_calls=calls,
        end_frame=envelope.end_frame,
        stage1_ms=stage1_ms,
        mesh_idle_ms=idle_ms,
        digest=fingerprint,
    )
