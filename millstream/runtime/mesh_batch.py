"""The front's end of a stream batch whose chunks are staggered on a mesh: called as one in this process is.

Every rank pushes and flushes as the front says, so the chunks are those of a stream batch of the same depth anywhere. One
message is with the mesh while what the one before it brought is shown: the mesh does not wait for pictures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from millstream.runtime.recovery import Flight, MeshTransport
from millstream.wire.parcel import Delivery, Parcel

AHEAD = 1
"""Messages that are not answered while others are shown."""


class MeshBatch:
    def __init__(self, transport: MeshTransport, session_id: str, *, depth: int) -> None:
        self.depth = depth
        self._transport, self._session_id = transport, session_id
        self._flights: deque[Flight] = deque()

    def push(self, parcel: Parcel) -> Iterator[Delivery]:
        """Send a chunk; then those that are done, each before the next answer is taken: a lost mesh is rebuilt from what the
        session has by then."""
        envelope = msgspec.structs.replace(parcel.envelope, under_way=self.depth)
        self._flights.append(self._transport.post([replace(parcel, envelope=envelope)]))
        yield from self._landed(AHEAD)

    def flush(self) -> Iterator[Delivery]:
        """End all chunks under way."""
        self._flights.append(self._transport.flush(self._session_id))
        yield from self._landed(0)

    def _landed(self, left: int) -> Iterator[Delivery]:
        while len(self._flights) > left:
            yield from self._flights.popleft().result()
