"""The native protocol over WebRTC: an offer at `/v1/webrtc/offer` carries the first message, the data channel
all others.

The picture is the first video track (VP8 or H.264, whichever the offer names first); a camera that the client
sends is the input of a session started with `input`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from millstream.core.client_messages import ProtocolError
from millstream.core.errors import MillstreamError
from millstream.core.server_messages import ErrorMessage
from millstream.server.protocol.conversation import Conversation
from millstream.server.protocol.endpoints import Endpoint, ServerState
from millstream.server.protocol.messages import read_opening
from millstream.server.sessions.outbox import Outbox
from millstream.server.transport.peers import Party


class Offer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sdp: str
    type: str
    start: dict[str, Any]
    """A native `start`, `attach` or `view`; without a type it is a `start`."""


class SdpAnswer(msgspec.Struct, frozen=True, kw_only=True):
    sdp: str
    type: str = "answer"
    session: str
    """Empty for those who only watch."""
    view: str


async def offer_stream(server: ServerState, words: Mapping[str, str], asked: Offer) -> SdpAnswer:
    """Open or join a session, and answer with how to connect to it."""
    if asked.type != "offer":
        raise ProtocolError("bad_message", f'type must be "offer", got {asked.type[:40]!r}')
    server.client.offers.spend("offers")
    party = await _join(asked.start, server)
    owner = party.may_feed
    session = party.live_session.session_id
    try:
        _, sdp = await server.peers.connect(asked.sdp, party, server.hub, server.limits)
    except MillstreamError:
        if owner and asked.start.get("type", "start") == "start":
            server.hub.service.end(session, "its connection was never made")
        raise
    return SdpAnswer(sdp=sdp, session=session if owner else "", view=party.live_session.view_id)


ENDPOINTS = (
    Endpoint(
        method="POST", path="/v1/webrtc/offer", does=offer_stream, body=Offer, holds_picture=True, answer=SdpAnswer,
        for_viewers=True,
        says="Open or join a session over WebRTC: pictures on a track, the native protocol on the channel "
             "`parameters`.",
    ),
)  # fmt: skip


async def _join(start: dict[str, Any], server: ServerState) -> Party:
    opening = read_opening({"type": "start", **start, "formats": ["raw"]})
    outbox = Outbox()
    conversation = Conversation(server.hub, outbox, server.limits, server.client)
    await conversation.on_message(opening)
    if conversation.live_session is None:
        raise await refusal_in(outbox)
    owner = conversation.state == "owner"
    return Party(
        handler=conversation,
        live_session=conversation.live_session,
        outbox=outbox,
        may_feed=owner,
        client=server.client,
    )


async def refusal_in(outbox: Outbox) -> ProtocolError:
    """Return the error that a conversation answered instead of a session."""
    while not isinstance(said := await outbox.pop(), ErrorMessage):
        pass
    return ProtocolError(said.code, said.message)
