"""A transport with no hops: the parcel is handed over by reference and run in the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from millstream.wire.parcel import Delivery, Parcel


class Worker(Protocol):
    """Whatever turns a parcel into a delivery, and forgets a session when told to."""

    def run(self, parcel: Parcel) -> Delivery: ...

    def run_together(self, parcels: Sequence[Parcel]) -> list[Delivery]: ...

    def release(self, session_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Landed:
    """Chunks that were done as soon as they were posted."""

    deliveries: list[Delivery]

    def done(self) -> bool:
        return True

    def result(self) -> list[Delivery]:
        return self.deliveries


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

    def post(self, parcels: Sequence[Parcel]) -> Landed:
        """As over a wire: ask for the result when it is needed."""
        return Landed(self.submit_together(parcels))

    def release(self, session_id: str) -> None:
        self._worker.release(session_id)
