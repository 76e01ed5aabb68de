"""A transport with no hops: the parcel is handed over by reference and begun in the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from millstream.wire.parcel import Delivery, Parcel


class Started(Protocol):
    """Chunks that a device works on."""

    def ahead(self) -> list[Tensor]:
        """Their latents where they are made, on which a device may still be at work."""

    def result(self) -> list[Delivery]:
        """Waits."""


class Worker(Protocol):
    """Whatever turns parcels into deliveries, and forgets a session when told to."""

    def begin(self, parcels: Sequence[Parcel]) -> Started: ...

    def release(self, session_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Handed:
    """Chunks handed over. Nobody else works on them, so there is nothing to do meanwhile but queue more work."""

    started: Started

    def done(self) -> bool:
        return True

    def ahead(self) -> list[Tensor]:
        return self.started.ahead()

    def result(self) -> list[Delivery]:
        return self.started.result()


class LocalTransport:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def post(self, parcels: Sequence[Parcel]) -> Handed:
        """Refuses before anything runs, as a wire would before the first byte."""
        for parcel in parcels:
            parcel.validate()
        return Handed(self._worker.begin(parcels))

    def release(self, session_id: str) -> None:
        self._worker.release(session_id)
