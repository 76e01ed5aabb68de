"""Scope's HTTP side: a pipeline that is loaded already, and WebRTC offers. What is said on the channel: `scope_parameters.py`.

One server has one model, so loading only checks its name and remembers size and seed for the sessions that follow; those that
run are not touched. Errors are `{"detail": …}`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from millstream.core.errors import MillstreamError
from millstream.server.asking import Ask
from millstream.server.bodies import json_response, read_json
from millstream.server.dialects.interpreter import heed
from millstream.server.dialects.scope_parameters import Parameters, ScopeChannel
from millstream.server.hub import Hub
from millstream.server.limits import ClientLimits
from millstream.server.messages import ProtocolError
from millstream.server.outbox import Outbox
from millstream.server.peers import MAX_CANDIDATES, Party, Peers
from millstream.server.rest import error_response
from millstream.server.webrtc import refusal_in

Side = Annotated[int, msgspec.Meta(ge=1, le=2**16)]


class LoadParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    height: Side | None = None
    width: Side | None = None
    seed: int | None = None


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    pipeline_id: str | None = None
    pipeline_ids: tuple[str, ...] = ()
    load_params: dict[str, Any] | None = None


class ScopeOffer(msgspec.Struct, frozen=True, kw_only=True):
    sdp: str
    type: str
    initialParameters: dict[str, Any] | None = None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    candidate: str
    sdpMid: str | None = None
    sdpMLineIndex: int | None = None


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    candidates: Annotated[tuple[Candidate, ...], msgspec.Meta(max_length=MAX_CANDIDATES)]


Handler = Callable[[Request], Awaitable[Response]]


def routes() -> list[BaseRoute]:
    scope = Scope()
    offer = "/api/v1/webrtc/offer"
    return [
        Route("/api/v1/pipeline/load", _plainly(scope.load), methods=["POST"]),
        Route("/api/v1/pipeline/status", _plainly(scope.status), methods=["GET"]),
        Route("/api/v1/webrtc/ice-servers", _plainly(scope.ice_servers), methods=["GET"]),
        Route(offer, _plainly(scope.offer), methods=["POST"]),
        Route(f"{offer}/{{id}}", _plainly(scope.add_candidates), methods=["PATCH"]),
        Route(f"{offer}/{{id}}", _plainly(scope.hang_up), methods=["DELETE"]),
    ]


class Scope:
    def __init__(self) -> None:
        self._loaded = LoadParams()
        """Of the last load: as in Scope, it holds for everybody who connects afterwards."""

    async def load(self, request: Request) -> Response:
        asked = await read_json(request, LoadRequest, _limits(request).max_text_bytes)
        names = {name for name in (asked.pipeline_id, *asked.pipeline_ids) if name}
        model = _hub(request).card.name
        if names != {model}:
            raise ProtocolError("not_found", f"this server has one pipeline, {model!r}; load that one")
        self._loaded, left_out = heed(asked.load_params or {}, LoadParams)
        return json_response({"message": f"{model} is loaded", "left_out": left_out})

    async def status(self, request: Request) -> Response:
        hub = _hub(request)
        failure = hub.service.failure
        ready = "loaded" if hub.service.ready.is_set() else "loading"
        return json_response(
            {
                "status": ready if failure is None else "error",
                "pipeline_id": hub.card.name,
                "load_params": self._loaded,
                "loaded_lora_adapters": [],
                "error": None if failure is None else str(failure),
            }
        )

    async def ice_servers(self, request: Request) -> Response:
        return json_response({"iceServers": [server.as_json() for server in _peers(request).ice_servers]})

    async def offer(self, request: Request) -> Response:
        hub, limits = _hub(request), _limits(request)
        asked = await read_json(request, ScopeOffer, limits.max_text_bytes)
        if asked.type != "offer":
            raise ProtocolError("bad_message", f'type must be "offer", got {asked.type[:40]!r}')
        first, unknown = heed(asked.initialParameters or {}, Parameters)
        outbox = Outbox()
        channel = ScopeChannel(hub, outbox, limits)
        if not await channel.start(self._start(hub, first), first, unknown):
            raise await refusal_in(outbox)
        station = channel.interpreter.conversation.station
        assert station is not None, "a channel started without its session"
        party = Party(talker=channel, station=station, outbox=outbox, may_feed=True)
        peer, sdp = await _peers(request).connect(asked.sdp, party, hub, limits)
        return json_response({"sdp": sdp, "type": "answer", "sessionId": peer.peer_id})

    async def add_candidates(self, request: Request) -> Response:
        peer = _peers(request).find(request.path_params["id"])
        asked = await read_json(request, Candidates, _limits(request).max_text_bytes)
        for each in asked.candidates:
            await peer.add_candidate(each.candidate, each.sdpMid, each.sdpMLineIndex)
        return Response(status_code=204)

    async def hang_up(self, request: Request) -> Response:
        _peers(request).find(request.path_params["id"]).hang_up()
        return Response(status_code=204)

    def _start(self, hub: Hub, first: Parameters) -> Ask:
        prompts = first.prompts or (first.transition.target_prompts if first.transition else ())
        if not prompts:
            raise ProtocolError("bad_message", "initialParameters needs prompts: [{text, weight}]")
        stream, loaded = hub.card.stream, self._loaded
        return Ask(
            prompts=prompts,
            size=f"{loaded.height or stream.height}x{loaded.width or stream.width}",
            seed=loaded.seed,
            steps=first.denoising_step_list,
            noise_scale=first.noise_scale,
            input=first.input_mode == "video",
        )


def _plainly(handler: Handler) -> Handler:
    """Errors as Scope's clients expect them."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except MillstreamError as error:
            return json_response({"detail": str(error)}, error_response(error).status_code)

    return handle


def _hub(request: Request) -> Hub:
    hub: Hub = request.app.state.hub
    return hub


def _limits(request: Request) -> ClientLimits:
    limits: ClientLimits = request.app.state.limits
    return limits


def _peers(request: Request) -> Peers:
    peers: Peers = request.app.state.peers
    return peers
