"""A transport with no hops: the parcel is handed over by reference and run in the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millstream.wire.parcel import Delivery, Parcel


class Worker(Protocol):
    """Whatever turns a parcel into a delivery, and forgets a session when told to."""

    def run(self, parcel: Parcel) -> Delivery: ...

    def run_together(self, parcels: Sequence[Parcel]) -> list[Delivery]: ...

    def release(self, session_id: str) -> None: ...


class LocalTransport:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def submit(self, parcel: Parcel) -> Delivery:
        """Refuses before anything runs, as a wire would before the first byte."""
        parcel.validate()
        return self._worker.run(parcel)

    def submit_together(self, parcels: Sequence[Parcel]) -> list[Delivery]:
        """Chunks of different sessions that can share their model calls."""
        for parcel in parcels:
            parcel.validate()
        return self._worker.run_together(parcels)

    def release(self, session_id: str) -> None:
        self._worker.release(session_id)
