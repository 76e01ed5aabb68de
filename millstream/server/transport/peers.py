"""WebRTC connections: pictures out on a track, a camera in on another, words on the ordered data channel
`parameters`.

A peer is fed from one outbox, as any other client: pictures go to the track, everything else to the channel,
which a handler reads and writes. Knows no dialect and no HTTP. Bounded: `max_peers` connections, `MAX_UNHEARD`
messages that wait to be heard (one more is refused), `MAX_UNSENT_BYTES` that a client has not taken (one more
byte and it counts as gone).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCIceServer,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.sdp import candidate_from_sdp

from millstream.core.client_messages import ProtocolError
from millstream.core.errors import ConfigError, Overloaded, UnknownSession
from millstream.core.keys import Key
from millstream.core.server_messages import ErrorMessage, Stats
from millstream.server.access.budgets import ClientAccount
from millstream.server.access.limits import ClientLimits
from millstream.server.access.shares import Quota
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.live_session import LiveSession
from millstream.server.sessions.outbox import ClientGone, EncodedChunk, Outbox
from millstream.server.transport.channels import watch_connecting, watch_packets
from millstream.server.transport.offers import MAX_CANDIDATES, checked_offer
from millstream.server.transport.tasks import stop_all
from millstream.server.transport.tracks import PictureTrack, feed_camera
from millstream.server.transport.websocket_loop import MessageHandler, messages

log = logging.getLogger(__name__)

CHANNEL = "parameters"
CONNECT_S = 30.0
"""An offer that has not become a connection by then is forgotten."""
CLOSE_S = 5.0
MAX_UNHEARD = 64
MAX_UNSENT_BYTES = 4 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class IceServer:
    """A STUN or TURN server, for clients that cannot reach this machine directly."""

    url: str
    username: str | None = None
    credential: str | None = None

    @staticmethod
    def parse(text: str) -> IceServer:
        """URL, or URL,USER,CREDENTIAL"""
        url, *rest = text.split(",")
        if url.partition(":")[0] not in ("stun", "stuns", "turn", "turns") or len(rest) not in (0, 2):
            raise ConfigError(
                f"--ice-server takes stun:HOST:PORT or turn:HOST:PORT,USER,CREDENTIAL, got {text!r}"
            )
        return IceServer(url=url, username=rest[0] if rest else None, credential=rest[1] if rest else None)

    def as_json(self) -> dict[str, Any]:
        named = dict(urls=[self.url], username=self.username, credential=self.credential)
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Party:
    """Server's end of a connection: the session, and the client it serves."""

    handler: MessageHandler
    live_session: LiveSession
    outbox: Outbox
    """Outbox of the session's viewer, in format raw."""
    may_feed: bool
    """True if the client's camera is the session's input."""
    client: ClientAccount = field(default_factory=ClientAccount)
    """Client that came, with its key."""


class Peer:
    """One connection. `answer` an offer, then `run` it; it ends with the session, or when the client is
    gone."""

    def __init__(
        self, party: Party, hub: SessionHub, limits: ClientLimits, configuration: RTCConfiguration
    ) -> None:
        self.peer_id = secrets.token_urlsafe(16)
        self.client = party.client
        self._party = party
        self._hub = hub
        self._limits = limits
        config = party.live_session.request.config
        self._track = PictureTrack((config.height, config.width))
        self._takes_camera = party.may_feed and party.live_session.request.takes_frames
        self._words = Outbox()
        """Messages that wait for the channel."""
        self._heard: asyncio.Queue[str | bytes] = asyncio.Queue(MAX_UNHEARD)
        self._channel: asyncio.Future[RTCDataChannel] = asyncio.get_running_loop().create_future()
        self._connected = asyncio.Event()
        self._gone = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_candidates = 0
        self._connection = RTCPeerConnection(configuration)
        watch_connecting(self._connection, self.hang_up)
        self._connection.on("connectionstatechange", self._note_state)
        self._connection.on("datachannel", self._take_channel)
        self._connection.on("track", self._take_track)
        self._connection.addTransceiver(
            self._track, direction="sendrecv" if self._takes_camera else "sendonly"
        )

    async def answer(self, sdp: str) -> str:
        """The answer's SDP. Raises `ProtocolError` for an offer that cannot be used."""
        try:
            offer = RTCSessionDescription(sdp=checked_offer(sdp), type="offer")
            await self._connection.setRemoteDescription(offer)
            self._decline_the_rest()
            if self._connection.sctp is not None:
                watch_packets(self._connection.sctp, self.hang_up)
            await self._connection.setLocalDescription()
        except ProtocolError:
            raise
        except Exception as error:  # a parser of strangers' text raises what it likes
            raise ProtocolError(
                "bad_message", f"cannot use this offer: {str(error)[:200] or type(error).__name__}"
            ) from None
        return str(self._connection.localDescription.sdp)

    async def add_candidate(self, text: str, mid: str | None, line: int | None) -> None:
        """One more way to reach the client; an empty one says there are no more."""
        self._num_candidates += 1
        if self._num_candidates > MAX_CANDIDATES:
            raise ProtocolError("too_fast", f"a connection may have {MAX_CANDIDATES} candidates")
        try:
            if not text:
                await self._connection.addIceCandidate(None)
                return
            candidate = candidate_from_sdp(text.removeprefix("candidate:"))
            candidate.sdpMid = mid
            candidate.sdpMLineIndex = line
            await self._connection.addIceCandidate(candidate)
        except Exception as error:  # as above
            raise ProtocolError(
                "bad_message", f"cannot use this candidate: {str(error)[:200] or 'it is not one'}"
            ) from None

    async def run(self) -> None:
        """Until the session has ended, or the client is gone or never came."""
        self._spawn(self._listen())
        ends = [self._spawn(self._send()), self._spawn(self._be_there())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self.close()

    def hang_up(self) -> None:
        """End it soon."""
        self._connected.set()
        self._gone.set()

    async def close(self) -> None:
        """Give back everything; once is enough."""
        self._track.stop()
        try:
            await stop_all(self._tasks)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._connection.close(), CLOSE_S)
        finally:
            self._party.handler.on_disconnect()  # last: until then a message may still be taken

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(
            work, name=f"millstream-peer-{self._party.live_session.view_id}"
        )
        self._tasks.add(task)
        return task

    async def _be_there(self) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._connected.wait(), CONNECT_S)
            await self._gone.wait()

    async def _send(self) -> None:
        """Sort what the session has to say, then see the channel through to the last word."""
        speaking = self._spawn(self._speak())
        with suppress(ClientGone):
            await self._party.outbox.drain(self._sort)
        self._track.finish()
        self._words.finish()
        await asyncio.wait({speaking}, timeout=CLOSE_S)

    async def _sort(self, item: Any) -> None:
        if isinstance(item, EncodedChunk):
            self._track.show(item)
        elif isinstance(item, Stats):
            self._words.put_newest(item)
        else:
            self._words.put(item)

    async def _speak(self) -> None:
        channel = await self._channel
        with suppress(ClientGone):
            while (item := await self._words.pop()) is not None:
                for message in messages(self._party.handler.encode(item)):
                    channel.send(message)
                if channel.bufferedAmount > MAX_UNSENT_BYTES:
                    break
            else:
                await self._let_it_arrive(channel)
        self._gone.set()

    async def _let_it_arrive(self, channel: RTCDataChannel) -> None:
        while channel.bufferedAmount and channel.readyState == "open":
            await asyncio.sleep(0.01)

    async def _listen(self) -> None:
        while self._party.handler.refusals <= self._limits.max_refusals:
            await self._party.handler.on_message(await self._heard.get())
        self._gone.set()

    def _note_state(self) -> None:
        if self._connection.connectionState == "connected":
            self._connected.set()
        elif self._connection.connectionState in ("failed", "closed"):
            self.hang_up()

    def _take_channel(self, channel: RTCDataChannel) -> None:
        if channel.label != CHANNEL or self._channel.done():
            channel.close()
            return
        channel.on("message", self._overhear)
        self._channel.set_result(channel)

    def _overhear(self, data: str | bytes) -> None:
        try:
            self._heard.put_nowait(data)
        except asyncio.QueueFull:
            self._words.put(
                ErrorMessage(code="too_fast", message=f"{MAX_UNHEARD} messages wait; this one was not taken")
            )

    def _take_track(self, track: MediaStreamTrack) -> None:
        if self._takes_camera and track.kind == "video":
            self._takes_camera = False  # one camera a session
            self._spawn(feed_camera(track, self._party.live_session, self._hub.pool, self._limits))

    def _decline_the_rest(self) -> None:
        """Whatever nobody reads is not to be sent: it would pile up."""
        fed = False
        for transceiver in self._connection.getTransceivers():
            ours = transceiver.sender.track is self._track
            sends = transceiver.kind == "video" and transceiver.receiver.track is not None and not fed
            reads = sends and self._party.may_feed and self._party.live_session.request.takes_frames
            fed = fed or reads
            if ours:
                transceiver.direction = "sendrecv" if reads else "sendonly"
            else:
                transceiver.direction = "recvonly" if reads else "inactive"


@dataclass(slots=True)
class Peers:
    """All connections of this server."""

    ice_servers: tuple[IceServer, ...] = ()
    """ICE servers that clients may use; none for those that can reach this machine directly."""
    max_peers: int = 64
    """Most connections of one client; all together may have an eighth more."""
    _peers: dict[str, Peer] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def connect(
        self, sdp: str, party: Party, hub: SessionHub, limits: ClientLimits
    ) -> tuple[Peer, str]:
        """A connection under way and the answer's SDP; when it cannot be, the party has left."""
        own = sum(peer.client.name == party.client.name for peer in self._peers.values())
        try:
            Quota(self.max_peers).check("connections", own=own, all=len(self._peers))
        except Overloaded:
            party.handler.on_disconnect()
            raise
        servers = [RTCIceServer(each.url, each.username, each.credential) for each in self.ice_servers]
        peer = Peer(party, hub, limits, RTCConfiguration(iceServers=servers))
        self._peers[peer.peer_id] = peer
        try:
            answer = await peer.answer(sdp)
        except BaseException:
            del self._peers[peer.peer_id]
            await peer.close()
            raise
        task = asyncio.get_running_loop().create_task(self._attend(peer), name="millstream-peer")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return peer, answer

    def find(self, peer_id: str, key: Key) -> Peer:
        peer = self._peers.get(peer_id)
        if peer is None or peer.client.key != key:
            raise UnknownSession("there is no such connection; it may have ended")
        return peer

    def __len__(self) -> int:
        return len(self._peers)

    async def close(self, timeout_s: float) -> None:
        for peer in self._peers.values():
            peer.hang_up()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def _attend(self, peer: Peer) -> None:
        try:
            await peer.run()
        except Exception:  # one connection's trouble is nobody else's
            log.exception("a WebRTC connection has failed")
        finally:
            del self._peers[peer.peer_id]
