"""A mesh that is a fake, and a viewer beside it: what happens in which order, and chunks that stop where a
test wants it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from torch import Tensor

from millstream.engine.engine import Engine
from millstream.serving.notices import Ended, Notice
from millstream.session.chunk import Chunk
from millstream.wire.parcel import Delivery, Parcel
from tests.unit.serving.test_service import PATIENCE_S, Owner


class Gate:
    """Where a chunk stops on its way back, until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()


class FakeMesh:
    """Works when it is waited for, and writes down what happens in which order."""

    def __init__(self, engine: Engine) -> None:
        self.local = engine.transport
        self.events = list[str]()
        self.flying: deque[FakePost] = deque()
        self.gates: dict[str, Gate] = {}
        self.answer: Callable[[str, Delivery], Delivery] = lambda name, delivery: delivery
        self.refuse: Callable[[Sequence[str]], None] = lambda names: None

    def post(self, parcels: Sequence[Parcel]) -> FakePost:
        names = [f"{parcel.envelope.session_id}{parcel.envelope.chunk_index}" for parcel in parcels]
        self.refuse(names)
        self.events.append(f"send {'+'.join(names)}")
        self.flying.append(FakePost(self, parcels, names))
        assert len(self.flying) == 1, "one flight at a time"
        return self.flying[-1]

    def release(self, session_id: str) -> None:
        assert all(session_id not in post.sessions for post in self.flying), (
            f"{session_id} is let go of in flight"
        )
        self.local.release(session_id)

    def hold(self, name: str) -> Gate:
        """A chunk does not come back before its gate is opened."""
        self.gates[name] = Gate()
        return self.gates[name]

    def order(self, *events: str) -> bool:
        """Whether these happened, in this order."""
        places = [self.events.index(event) for event in events]
        return places == sorted(places)


class FakePost:
    def __init__(self, mesh: FakeMesh, parcels: Sequence[Parcel], names: list[str]) -> None:
        self._mesh = mesh
        self._parcels = parcels
        self._names = names
        self.sessions = {parcel.envelope.session_id for parcel in parcels}

    def done(self) -> bool:
        return False

    def ahead(self) -> list[Tensor]:
        return []

    def result(self) -> list[Delivery]:
        for name in self._names:
            gate = self._mesh.gates.get(name)
            if gate is not None:
                gate.reached.set()
                assert gate.open.wait(PATIENCE_S), f"nobody opened the gate of {name}"
        deliveries = self._mesh.local.post(self._parcels).result()
        assert self._mesh.flying.popleft() is self
        self._mesh.events.append(f"have {'+'.join(self._names)}")
        return [self._mesh.answer(name, each) for name, each in zip(self._names, deliveries, strict=True)]


class Viewer(Owner):
    """An owner whose pictures are events, too."""

    def __init__(self, name: str, events: list[str]) -> None:
        super().__init__()
        self._name = name
        self._events = events
        self.notices: list[Notice] = []

    def __call__(self, notice: Notice) -> None:
        assert not (self.notices and isinstance(self.notices[-1], Ended)), f"{notice} comes after the end"
        self.notices.append(notice)
        if isinstance(notice, Chunk):
            self._events.append(f"show {self._name}{notice.index}")
        super().__call__(notice)

    @property
    def chunks(self) -> list[Chunk]:
        return [notice for notice in self.notices if isinstance(notice, Chunk)]

    def ended(self) -> Ended:
        return self.wait_for(Ended)[-1]
