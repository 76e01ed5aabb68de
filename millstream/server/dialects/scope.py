"""Scope's HTTP side: a pipeline that is loaded already, and WebRTC offers. What is said on the channel:
`scope_parameters.py`.

One server has one model, so loading only checks its name and remembers size and seed for the sessions that
follow; those that run are not touched. Errors are `{"detail": …}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from starlette.requests import Request

from millstream.core.client_messages import Ask, ProtocolError
from millstream.core.errors import MillstreamError
from millstream.core.keys import Key
from millstream.server.dialects.interpreter import heed, whole
from millstream.server.dialects.scope_parameters import ScopeChannel, ScopeParameters
from millstream.server.dialects.scope_schema import PipelineSchemas, schemas_of
from millstream.server.protocol.bodies import read_json
from millstream.server.protocol.endpoints import Endpoint, Handler, ServerState
from millstream.server.protocol.webrtc import refusal_in
from millstream.server.sessions.outbox import Outbox
from millstream.server.transport.offers import MAX_CANDIDATES
from millstream.server.transport.peers import Party

T = TypeVar("T", bound=msgspec.Struct)
Side = Annotated[int, msgspec.Meta(ge=1, le=2**16)]


class LoadParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    height: Side | None = None
    width: Side | None = None
    seed: int | None = None
    base_seed: int | None = None
    """Seed, as Scope's pipelines call it; it comes before `seed`."""


class LoadItem(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline at a node of a graph; here there is one of each."""

    node_id: str
    pipeline_id: str
    load_params: dict[str, Any] | None = None


class ScopeLoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """As its frontend says it now (`pipelines`), and as it did."""

    pipelines: tuple[LoadItem, ...] | None = None
    pipeline_id: str | None = None
    pipeline_ids: tuple[str, ...] | None = None
    load_params: dict[str, Any] | None = None

    @property
    def names(self) -> set[str]:
        nodes = (item.pipeline_id for item in self.pipelines or ())
        return {name for name in (self.pipeline_id, *(self.pipeline_ids or ()), *nodes) if name}

    @property
    def params(self) -> dict[str, Any]:
        nodes = (item.load_params or {} for item in self.pipelines or ())
        return {name: value for each in (self.load_params or {}, *nodes) for name, value in each.items()}


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


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    left_out: tuple[str, ...]
    """Names of what was asked for and means nothing here."""


class PipelineStatus(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["loaded", "loading", "error"]
    pipeline_id: str
    load_params: LoadParams
    loaded_lora_adapters: tuple[str, ...] = ()
    error: str | None
    loading_stage: str | None = None
    produces_video: bool = True
    produces_audio: bool = False


class IceServers(msgspec.Struct, frozen=True, kw_only=True):
    iceServers: tuple[dict[str, Any], ...]


class ScopeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    sdp: str
    type: str = "answer"
    sessionId: str


class Onboarding(msgspec.Struct, frozen=True, kw_only=True):
    """Onboarding status that Scope's pages request before they show their wizard."""

    completed: bool = True
    inference_mode: str | None = "local"


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """An error as Scope's clients expect it."""

    detail: str


def explain(error: MillstreamError) -> Detail:
    return Detail(detail=str(error))


def endpoints() -> list[Endpoint]:
    scope = Scope()
    offer = "/api/v1/webrtc/offer"
    onboarding = "/api/v1/onboarding/status"
    return [
        _endpoint(
            "POST",
            "/api/v1/pipeline/load",
            scope.load_pipeline,
            "Scope: check a pipeline's name.",
            ScopeLoadRequest,
            Loaded,
        ),
        _endpoint(
            "GET",
            "/api/v1/pipeline/status",
            scope.pipeline_status,
            "Scope: how it stands.",
            None,
            PipelineStatus,
        ),
        _endpoint(
            "GET",
            "/api/v1/pipelines/schemas",
            scope.schemas,
            "Scope: the pipelines to choose.",
            None,
            PipelineSchemas,
        ),
        _endpoint(
            "GET",
            "/api/v1/webrtc/ice-servers",
            scope.ice_servers,
            "Scope: for offers from afar.",
            None,
            IceServers,
        ),
        _endpoint(
            "GET", onboarding, scope.onboarding, "Scope: its wizard has nothing to set up.", None, Onboarding
        ),
        _endpoint(
            "PUT", onboarding, scope.set_onboarding, "Scope: the same, whatever is said.", None, Onboarding
        ),
        _endpoint(
            "POST", offer, scope.offer_scope, "Scope: a new session over WebRTC.", ScopeOffer, ScopeAnswer
        ),
        _endpoint(
            "PATCH",
            f"{offer}/{{id}}",
            scope.add_candidates,
            "Scope: ways to reach the client.",
            Candidates,
            None,
        ),
        _endpoint(
            "DELETE", f"{offer}/{{id}}", scope.hang_up, "Scope: end a connection and its session.", None, None
        ),
    ]


def _endpoint(
    method: str, path: str, does: Handler, says: str, body: type | None, answer: type | None
) -> Endpoint:
    return Endpoint(
        method=method,
        path=path,
        does=does,
        says=says,
        body=body,
        reads_itself=body in (ScopeLoadRequest, ScopeOffer),
        answer=answer,
        status=204 if answer is None else 200,
        error=Detail,
        explain=explain,
    )


class Scope:
    def __init__(self) -> None:
        self._loaded: dict[Key, LoadParams] = {}
        """Parameters of the last load by key: as in Scope, they hold for all clients that connect
        afterwards, with the same key."""

    async def load_pipeline(self, server: ServerState, words: Mapping[str, str], request: Request) -> Loaded:
        asked, unknown = await _heeded(request, ScopeLoadRequest, server)
        model = _check_names(asked.names, server)
        self._loaded[server.client.key], left_out = heed(asked.params, LoadParams)
        return Loaded(message=f"{model} is loaded", left_out=left_out + unknown)

    async def pipeline_status(
        self, server: ServerState, words: Mapping[str, str], body: None
    ) -> PipelineStatus:
        service = server.hub.service
        failure = server.hub.service.failure
        ready: Literal["loaded", "loading"] = "loaded" if service.ready.is_set() else "loading"
        return PipelineStatus(
            status=ready if failure is None else "error",
            pipeline_id=server.hub.card.name,
            load_params=self._loaded.get(server.client.key, LoadParams()),
            error=None if failure is None else str(failure),
        )

    async def schemas(self, server: ServerState, words: Mapping[str, str], body: None) -> PipelineSchemas:
        return schemas_of(server.hub.card)

    async def ice_servers(self, server: ServerState, words: Mapping[str, str], body: None) -> IceServers:
        return IceServers(iceServers=tuple(server.as_json() for server in server.peers.ice_servers))

    async def onboarding(self, server: ServerState, words: Mapping[str, str], body: None) -> Onboarding:
        """The wizard chooses where a model runs and loads one. Both are done here, so it is never shown, and
        what it stores (answers to a survey among them) is not read."""
        return Onboarding()

    async def set_onboarding(self, server: ServerState, words: Mapping[str, str], body: None) -> Onboarding:
        return Onboarding()

    async def offer_scope(
        self, server: ServerState, words: Mapping[str, str], request: Request
    ) -> ScopeAnswer:
        asked, beside = await _heeded(request, ScopeOffer, server)
        if asked.type != "offer":
            raise ProtocolError("bad_message", f'type must be "offer", got {asked.type[:40]!r}')
        first, unknown = heed(asked.initialParameters or {}, ScopeParameters)
        if first.pipeline_ids:
            _check_names(set(first.pipeline_ids), server)
        outbox = Outbox()
        server.client.offers.spend("offers")
        channel = ScopeChannel(server.hub, outbox, server.limits, server.client)
        ask = self._start(server, first, await channel.first_picture(first))
        if not await channel.start(ask, first, unknown + beside):
            raise await refusal_in(outbox)
        live_session = channel.interpreter.conversation.live_session
        assert live_session is not None, "a channel started without its session"
        party = Party(
            handler=channel, live_session=live_session, outbox=outbox, may_feed=True, client=server.client
        )
        peer, sdp = await server.peers.connect(asked.sdp, party, server.hub, server.limits)
        return ScopeAnswer(sdp=sdp, sessionId=peer.peer_id)

    async def add_candidates(self, server: ServerState, words: Mapping[str, str], asked: Candidates) -> None:
        peer = server.peers.find(words["id"], server.client.key)
        for each in asked.candidates:
            await peer.add_candidate(each.candidate, each.sdpMid, each.sdpMLineIndex)

    async def hang_up(self, server: ServerState, words: Mapping[str, str], body: None) -> None:
        server.peers.find(words["id"], server.client.key).hang_up()

    def _start(self, server: ServerState, first: ScopeParameters, picture: bytes) -> Ask:
        prompts = first.mix or (first.transition.target_prompts if first.transition else ())
        if not prompts:
            raise ProtocolError("bad_message", "initialParameters needs prompts: [{text, weight}]")
        stream = server.hub.card.stream
        loaded = self._loaded.get(server.client.key, LoadParams())
        return Ask(
            prompts=prompts,
            size=f"{loaded.height or stream.height}x{loaded.width or stream.width}",
            seed=loaded.seed if loaded.base_seed is None else loaded.base_seed,
            steps=first.denoising_step_list,
            noise_scale=first.noise_scale,
            kv_bias=first.kv_cache_attention_bias,
            image=picture,
            input=first.input_mode == "video",
        )


def _check_names(names: set[str], server: ServerState) -> str:
    """The name of what is served, which is all that may be named."""
    model = server.hub.card.name
    if names != {model}:
        raise ProtocolError("not_found", f"this server has one pipeline, {model!r}; load that one")
    return model


async def _heeded(request: Request, kind: type[T], server: ServerState) -> tuple[T, tuple[str, ...]]:
    """A body's known fields, and the names of others that ask for something."""
    return heed(whole(await read_json(request, dict[str, Any], server.limits.max_text_bytes, server)), kind)
