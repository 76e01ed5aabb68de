"""Bytes of chunks that a front has sent, or has received and not shown: measured by the latents that are
alive.

Latents are counted from the moment they are sent or received until nothing refers to them any more. The
history keeps a chunk's frames, not the chunk.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from torch import Tensor

from millstream.wire.parcel import Delivery, Parcel, PendingDeliveries


class QueuedBytes:
    """In front of a transport's `post`."""

    def __init__(self, post: Callable[[Sequence[Parcel]], PendingDeliveries]) -> None:
        self.most = 0
        self._post = post
        self._now = 0

    def post(self, parcels: Sequence[Parcel]) -> PendingDeliveries:
        for parcel in parcels:
            self.hold(parcel.latents_in)
        return CountedPost(self._post(parcels), self.hold)

    def hold(self, latents: Tensor) -> None:
        self._now += latents.nbytes
        self.most = max(self.most, self._now)
        weakref.finalize(latents, self._let_go, latents.nbytes)

    def _let_go(self, num_bytes: int) -> None:
        self._now -= num_bytes


class CountedPost:
    """A post whose answers are counted when they are taken."""

    def __init__(self, posted: PendingDeliveries, hold: Callable[[Tensor], None]) -> None:
        self._posted = posted
        self._hold = hold

    def done(self) -> bool:
        return self._posted.done()

    def ahead(self) -> list[Tensor]:
        return self._posted.ahead()

    def result(self) -> list[Delivery]:
        deliveries = self._posted.result()
        for delivery in deliveries:
            if delivery.latents_out is not None:
                self._hold(delivery.latents_out)
        return deliveries
