"""The native protocol over WebRTC: an offer at `/v1/webrtc/offer` carries the first message, the data channel all others.

The picture is the first video track (VP8 or H.264, whichever the offer names first); a camera that the client sends is the
input of a session started with `input`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from millstream.core.errors import MillstreamError
from millstream.server.bodies import json_response, read_json
from millstream.server.conversation import Conversation
from millstream.server.hub import Hub
from millstream.server.limits import ClientLimits
from millstream.server.messages import ErrorMessage, ProtocolError
from millstream.server.outbox import Outbox
from millstream.server.peers import Party, Peers
from millstream.server.rest import error_response

OPENINGS = ("start", "attach", "view", "restore")


class Offer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sdp: str
    type: str
    start: dict[str, Any]
    """A native `start`, `attach` or `view`; without a type it is a `start`."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    sdp: str
    type: str = "answer"
    session: str
    """Empty for those who only watch."""
    view: str


def routes() -> list[BaseRoute]:
    return [Route("/v1/webrtc/offer", offer, methods=["POST"])]


async def offer(request: Request) -> Response:
    """Open or join a session, and answer with how to connect to it."""
    hub: Hub = request.app.state.hub
    limits: ClientLimits = request.app.state.limits
    try:
        asked = await read_json(request, Offer, limits.max_text_bytes)
        if asked.type != "offer":
            raise ProtocolError("bad_message", f'type must be "offer", got {asked.type[:40]!r}')
        party = await _join(asked.start, hub, limits)
        owner = party.may_feed
        try:
            _, sdp = await _peers(request).connect(asked.sdp, party, hub, limits)
        except MillstreamError:
            if owner and asked.start.get("type", "start") == "start":
                hub.service.end(party.station.session_id, "its connection was never made")
            raise
    except MillstreamError as error:
        return error_response(error)
    return json_response(Answer(sdp=sdp, session=party.station.session_id if owner else "", view=party.station.view_id))


async def _join(start: dict[str, Any], hub: Hub, limits: ClientLimits) -> Party:
    opening = {"type": "start", **start, "formats": ["raw"]}
    if opening["type"] not in OPENINGS:
        raise ProtocolError("bad_state", f"an offer begins with one of {', '.join(OPENINGS)}")
    outbox = Outbox()
    conversation = Conversation(hub, outbox, limits)
    await conversation.hear(msgspec.json.encode(opening).decode())
    if conversation.station is None:
        raise await refusal_in(outbox)
    return Party(talker=conversation, station=conversation.station, outbox=outbox, may_feed=conversation.state == "owner")


async def refusal_in(outbox: Outbox) -> ProtocolError:
    """What a conversation answered instead of a session."""
    while not isinstance(said := await outbox.take(), ErrorMessage):
        pass
    return ProtocolError(said.code, said.message)


def _peers(request: Request) -> Peers:
    peers: Peers = request.app.state.peers
    return peers
