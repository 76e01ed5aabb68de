"""Watch over what aiortc does with a peer below the data channel's messages.

aiortc keeps whatever has not become a message yet, however much it is; a packet it cannot read, or an offer
it cannot follow, ends one of its tasks with a traceback. Here any of these ends that peer's connection, and
nothing else. Uses aiortc's internals: it has no other place for this.
"""

from __future__ import annotations

from collections.abc import Callable

from aiortc import RTCPeerConnection, RTCSctpTransport

from millstream.server.access.limits import TokenBucket

PACKETS_PER_S = 2000.0
"""Twice that at once; a message of the longest kind takes a hundred."""
MAX_STREAMS = 16
"""One is used."""
MAX_PIECES = 4096
"""That wait for the rest of their message."""


def watch_connecting(connection: RTCPeerConnection, give_up: Callable[[], None]) -> None:
    """Have `give_up` called where the way to a connection ends in an error: aiortc walks it in a task that
    nobody awaits."""
    connect = connection._RTCPeerConnection__connect  # type: ignore[attr-defined]

    async def connect_or_give_up() -> None:
        try:
            await connect()
        except Exception:  # what strangers offer raises what it likes
            give_up()

    connection._RTCPeerConnection__connect = connect_or_give_up  # type: ignore[attr-defined]


def watch_packets(transport: RTCSctpTransport, give_up: Callable[[], None]) -> None:
    """Have `give_up` called at the first packet too many; those behind it are not read."""
    parse = transport._handle_data
    packets = TokenBucket(PACKETS_PER_S, 2 * PACKETS_PER_S)
    over = False

    async def handle(data: bytes) -> None:
        nonlocal over
        if over:
            return
        try:
            await parse(data)
        except Exception:  # a parser of strangers' packets raises what it likes
            over = True
        over = over or not packets.try_spend() or _holds_too_much(transport)
        if over:
            give_up()

    transport._handle_data = handle  # type: ignore[method-assign]


def _holds_too_much(transport: RTCSctpTransport) -> bool:
    streams = transport._inbound_streams
    pieces = sum(len(stream.reassembly) for stream in streams.values())
    return transport._advertised_rwnd < 0 or len(streams) > MAX_STREAMS or pieces > MAX_PIECES
