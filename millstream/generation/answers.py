"""From latents that a device may still be at work on to whole deliveries.

Waiting for latents is not waiting for the commit behind them: frames can be queued, or sent for, meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
from torch import Tensor

from millstream.core.envelope import Envelope, Result
from millstream.wire.parcel import Delivery, digest


@dataclass(frozen=True, slots=True)
class QueuedDeliveries:
    """`PendingDeliveries` of parcels that a device here works on, refused ones among them. They are done as
    far as the host is concerned: there is nothing to do meanwhile but queue more work."""

    deliveries: Sequence[Delivery]
    start: float
    idle_s: float
    rest: Callable[[], None]

    def done(self) -> bool:
        return True

    def ahead(self) -> list[Tensor]:
        """Latents of the parcels that were not refused."""
        return [delivery.latents_out for delivery in self.deliveries if delivery.latents_out is not None]

    def result(self) -> list[Delivery]:
        """Wait for all latents."""
        fingerprints = [fingerprint(delivery) for delivery in self.deliveries]
        self.rest()
        took_ms = 1000.0 * (time.perf_counter() - self.start)
        idle_ms = 1000.0 * self.idle_s
        return [
            whole(delivery, found, stage1_ms=took_ms, idle_ms=idle_ms)
            for delivery, found in zip(self.deliveries, fingerprints, strict=True)
        ]


def refused(envelope: Envelope, error: str) -> Delivery:
    """The answer to a parcel that cannot run."""
    assert error, f"chunk {envelope.chunk_index} was refused for no reason"
    return Delivery(result=result_of(envelope, error=error))


def result_of(envelope: Envelope, *, error: str = "", calls: int = 0) -> Result:
    """A chunk's answer as far as it is known before its latents are read."""
    return Result(
        call_id=envelope.call_id,
        session_id=envelope.session_id,
        chunk_index=envelope.chunk_index,
        cache_epoch=envelope.cache_epoch,
        ok=not error,
        error=error,
        observed_calls=calls,
        end_frame=envelope.end_frame,
    )


def fingerprint(delivery: Delivery) -> str:
    """Digest of a delivery's latents; empty where there are none or they are not finite. Waits for them, not
    for the commit behind them."""
    if delivery.on_host is None:
        return ""
    assert delivery.finite is not None, "latents that are read are checked"
    latents = delivery.on_host.wait()
    return digest(latents) if bool(delivery.finite.wait()) else ""


def whole(delivery: Delivery, fingerprint: str, *, stage1_ms: float, idle_ms: float) -> Delivery:
    """A delivery whose latents were read."""
    result = msgspec.structs.replace(
        delivery.result, stage1_ms=stage1_ms, mesh_idle_ms=idle_ms, digest=fingerprint
    )
    if fingerprint or not result.ok:
        return replace(delivery, result=result, finite=None)
    error = f"chunk {result.chunk_index} came out with latents that are not finite; try --dtype float32"
    return Delivery(result=msgspec.structs.replace(result, ok=False, error=error))
