"""What a generator has made, while a device may still be at work on it, and how that becomes deliveries.

Waiting for latents is not waiting for the commit behind them: pictures can be queued, or sent for, meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.core.envelope import Envelope, Result
from millstream.ops.host import HostCopy
from millstream.wire.parcel import Delivery, digest


class CleanLatents:
    """Of one chunk, where they were made and on their way to the host, and the model calls they took. Whether they are
    finite is looked at where they are: a device would stand still while the host's threads gather to do it."""

    def __init__(self, latents: Tensor) -> None:
        self.latents, self.calls = latents, 0
        self._there, self._finite = HostCopy(latents), HostCopy(torch.isfinite(latents).all())

    def read(self) -> str:
        """Their fingerprint; empty where they are not finite. Waits for them, not for the commit behind them."""
        there = self._there.wait()
        return digest(there) if bool(self._finite.wait()) else ""

    def delivery(self, envelope: Envelope, fingerprint: str, *, stage1_ms: float, idle_ms: float) -> Delivery:
        """What the chunk is answered with."""
        if not fingerprint:
            error = f"chunk {envelope.chunk_index} came out with latents that are not finite; try --dtype float32"
            return Delivery(result=result_of(envelope, error, self.calls, stage1_ms, idle_ms, ""))
        result = result_of(envelope, "", self.calls, stage1_ms, idle_ms, fingerprint)
        return Delivery(result=result, latents_out=self.latents, on_host=self._there.wait())


@dataclass(frozen=True, slots=True)
class PendingParcels:
    """Parcels that a device works on, each with what comes of it, or why it was refused. Nobody else works on them: there is
    nothing to do meanwhile but queue more work."""

    answers: Sequence[tuple[Envelope, CleanLatents | str]]
    begun: float
    idle_s: float
    rest: Callable[[], None]

    def done(self) -> bool:
        return True

    def ahead(self) -> list[Tensor]:
        """The latents of those that were not refused, on which a device may still be at work."""
        return [made.latents for _, made in self.answers if isinstance(made, CleanLatents)]

    def result(self) -> list[Delivery]:
        """Waits for all latents."""
        read = [made.read() if isinstance(made, CleanLatents) else "" for _, made in self.answers]
        self.rest()
        took_ms, idle_ms = 1000.0 * (time.perf_counter() - self.begun), 1000.0 * self.idle_s
        return [
            Delivery(result=result_of(envelope, made, 0, took_ms, idle_ms, ""))
            if isinstance(made, str)
            else made.delivery(envelope, fingerprint, stage1_ms=took_ms, idle_ms=idle_ms)
            for (envelope, made), fingerprint in zip(self.answers, read, strict=True)
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
