"""A transport with no hops: the parcel is handed over by reference and begun in the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millstream.wire.parcel import Parcel, PendingDeliveries


class Worker(Protocol):
    """Whatever turns parcels into deliveries, and forgets a session when told to."""

    def begin(self, parcels: Sequence[Parcel]) -> PendingDeliveries: ...

    def fork(self, session_id: str, new_id: str) -> None: ...

    def release(self, session_id: str) -> None: ...


class LocalTransport:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def post(self, parcels: Sequence[Parcel]) -> PendingDeliveries:
        """Refuses before anything runs, as a wire would before the first byte."""
        for parcel in parcels:
            parcel.validate()
        return self._worker.begin(parcels)

    def fork(self, session_id: str, new_id: str) -> bool:
        self._worker.fork(session_id, new_id)
        return True

    def release(self, session_id: str) -> None:
        self._worker.release(session_id)
