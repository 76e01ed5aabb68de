"""The board: what ranks post to each other outside of collectives, so that it arrives when collectives do
not.

A key-value store that lives in the front's process: when the front dies, the board is gone and all ranks
notice. Nothing here waits inside the store: a reader asks for a key again and again, so that a missing rank
is a message and not a hang; and when the front closes it, all that wait in it fail at once.

Under torchrun it lives with the agent of the first machine and outlives meshes. There meshes have numbers,
and every process that starts takes the next one: newer than its own last, no older than that of any other. A
process that sees a newer one than its own leaves, so all come to the same number, in whichever order they
were lost and started again.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistError
from torch.distributed.distributed_c10d import PrefixStore

from millstream.core.errors import MeshError, MeshLost

POLL_S = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class MeetingPoint:
    """Address of the store that ranks meet at. Where one store serves several starts, each start has a
    number, so that nothing of an earlier one is read."""

    host: str
    port: int
    incarnation: int = 0
    restarts_left: int | None = None
    """Times that torchrun would start this process again; None where the front starts ranks itself."""


class Rendezvous:
    def __init__(self, store: TCPStore, meeting: MeetingPoint, *, in_turns: Sequence[int] = ()) -> None:
        """`in_turns` are the ranks that come to this store mesh after mesh; none where it serves one mesh
        only."""
        self.meeting = meeting
        self._in_turns = in_turns
        self._stores: tuple[PrefixStore, TCPStore] | None = (
            PrefixStore(f"mesh{meeting.incarnation}", store),
            store,
        )
        """The second is the one that the first reads, and does not keep alive by itself."""

    @classmethod
    def host(
        cls, address: str = "127.0.0.1", port: int = 0, *, if_taken: str = "choose another --master-port"
    ) -> Rendezvous:
        """Reachable at this address only: left to itself the store would listen on all of them. Where a port
        that was asked for cannot be had, `if_taken` is what to do."""
        try:
            listener = socket.create_server((address, port))
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise MeshError(
                f"cannot listen on {address}:{port}: {why}" + (f"; {if_taken}" if port else "")
            ) from None
        port = listener.getsockname()[1]
        try:
            store = TCPStore(
                address,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=10),
                master_listen_fd=listener.detach(),
            )
        except DistError:
            raise MeshError(
                f"this machine does not reach itself at {address}: is that network interface up?"
            ) from None
        return cls(store, MeetingPoint(host=address, port=port))

    @classmethod
    def join(cls, meeting: MeetingPoint, *, timeout_s: float) -> Rendezvous:
        found: list[TCPStore] = []

        def connect() -> None:
            with suppress(DistError):
                timeout = timedelta(seconds=timeout_s)
                found.append(
                    TCPStore(
                        meeting.host, meeting.port, is_master=False, wait_for_workers=False, timeout=timeout
                    )
                )

        joining = threading.Thread(target=connect, daemon=True)
        joining.start()
        joining.join(
            timeout_s
        )  # a server that listens there and is no board would be waited for in the store without an end
        if not found:
            raise MeshError(
                f"nobody answers at {meeting.host}:{meeting.port} within {timeout_s:g} s; is the front "
                "running and reachable?"
            )
        return cls(found[0], meeting)

    @property
    def store(self) -> PrefixStore:
        return self._open()[0]

    def close(self) -> None:
        """Close the board. Where this process hosts the store, that ends with it: a process that waits
        inside, on a connection of its own, fails at once."""
        self._stores = None

    def another(self, timeout_s: float) -> Rendezvous:
        """Open another connection to the same board, for callers that may wait inside the store."""
        return Rendezvous.join(self.meeting, timeout_s=timeout_s)

    def take_turn(self, rank: int, world_size: int) -> Rendezvous:
        """Return the board of the next mesh, on a store that serves several."""
        _, store = self._open()
        store.set(f"restarts left/{rank}", str(self.meeting.restarts_left or 0))
        turns = _turns(store, range(world_size))
        mine = max(turns[rank] + 1, *turns.values())
        store.add(f"turn/{rank}", mine - turns[rank])
        return Rendezvous(store, replace(self.meeting, incarnation=mine), in_turns=range(world_size))

    def is_past(self) -> bool:
        """Return whether any rank has gone on to a later mesh."""
        return any(
            turn > self.meeting.incarnation for turn in _turns(self._open()[1], self._in_turns).values()
        )

    def never_again(self, mesh: int, ranks: Iterable[int], *, waited: bool) -> list[int]:
        """Return the ranks that do not come back after the mesh of this number: torchrun has no restart left
        for them, or they were waited for and did not come to that one."""
        _, store = self._open()
        return [
            rank
            for rank, turn in _turns(store, ranks).items()
            if (waited and turn < mesh) or (turn == mesh and store.get(f"restarts left/{rank}") == b"0")
        ]

    def claim(self, rank: int) -> None:
        if self.store.add(f"claim/{rank}", 1) > 1:
            raise MeshError(f"rank {rank} is taken: it was started twice; start each rank once")

    def post(self, key: str, value: Any) -> None:
        """Post a value, which may be anything that JSON can hold."""
        self.store.set(key, json.dumps(value))

    def read(self, key: str) -> Any:
        """Return what was posted under a key; None if nothing was."""
        return json.loads(self.store.get(key)) if self.store.check([key]) else None

    def fail(self, rank: int, reason: str) -> None:
        """Post why a rank leaves. Its first reason is kept."""
        if not self.store.check([f"failed/{rank}"]):
            self.post(f"failed/{rank}", reason)

    def failures(self, ranks: Iterable[int]) -> dict[int, str]:
        found = {rank: self.read(f"failed/{rank}") for rank in ranks}
        return {rank: reason for rank, reason in found.items() if reason is not None}

    def collect(self, key: str, ranks: Sequence[int], *, timeout_s: float) -> dict[int, Any]:
        """Return what these ranks posted under `key/RANK`. Raises when one has failed or does not come in
        time."""
        deadline = time.monotonic() + timeout_s
        pause_s = POLL_S / 64
        while True:
            found = {rank: self.read(f"{key}/{rank}") for rank in ranks}
            missing = [rank for rank, value in found.items() if value is None]
            if not missing:
                return found
            for rank, reason in self.failures(ranks).items():
                raise MeshError(f"rank {rank}: {reason}")
            if time.monotonic() > deadline:
                raise MeshError(
                    f"rank {', '.join(map(str, missing))} did not come within {timeout_s:g} s ({key})"
                )
            time.sleep(pause_s)
            pause_s = min(POLL_S, 2 * pause_s)

    def _open(self) -> tuple[PrefixStore, TCPStore]:
        stores = self._stores
        if stores is None:
            raise MeshLost("the board of this mesh is closed")
        return stores


def _turns(store: TCPStore, ranks: Iterable[int]) -> dict[int, int]:
    """Return the number of the last mesh that each rank has joined."""
    return {rank: store.add(f"turn/{rank}", 0) for rank in ranks}
