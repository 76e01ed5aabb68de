"""What a session may be asked to be, in a client's words, and the session that comes of it. Any protocol's business."""

from __future__ import annotations

from typing import Any, Literal

from millstream.core.client_messages import Ask
from millstream.core.config import parse_size
from millstream.core.controls import as_mix, check_prompts
from millstream.core.errors import ConfigError, PromptError
from millstream.engine.engine import stream_config
from millstream.server.access.keys import NAMELESS, Key
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.live_session import LiveSession
from millstream.serving.session_entry import OpenRequest
from millstream.session.pacing import RateKind


def open_asked(
    hub: SessionHub,
    ask: Ask,
    *,
    client: str = "",
    key: Key = NAMELESS,
    session_id: str = "",
    max_chunks: int | None = None,
) -> LiveSession:
    terms = _terms(hub, ask, key)
    return hub.open(**terms, max_chunks=max_chunks, client=client, key=key, session_id=session_id)


def request_of(hub: SessionHub, ask: Ask, key: Key = NAMELESS) -> OpenRequest:
    """The same as it would be asked for. Raises what is wrong with it."""
    return hub.request(**_terms(hub, ask, key), key=key)


def _terms(hub: SessionHub, ask: Ask, key: Key) -> dict[str, Any]:
    if bool(ask.prompt) == bool(ask.prompts):
        raise PromptError("a session needs either prompt or prompts, not both and not neither")
    check_prompts(prompts := as_mix(ask.prompts, ask.prompt))
    fps = ask.fps
    if fps is None:
        fps = "auto" if hub.card.fps == "auto" else key.capped(hub.card.fps)
    rate: RateKind = "auto" if fps == "auto" else "strict" if ask.strict else "asked"
    if rate == "auto" and ask.strict:
        raise ConfigError("strict needs a frame rate to be strict about: name fps, or leave strict out")
    return dict(
        prompts=prompts,
        config=stream_config(hub.card.stream, **_changes(ask, fps)),
        rate=rate,
        lead_s=ask.lead_s,
        may_wait=ask.wait,
        unattended=ask.unattended,
        weight=ask.weight,
        source=_source(hub, ask),
    )


def _source(hub: SessionHub, ask: Ask) -> str | None:
    """What it restyles: None for nothing, a name, or what its owner sends."""
    if not ask.source:
        return "" if ask.input else None
    if ask.input:
        raise ConfigError("a session has a source or is sent frames: leave source or input out")
    hub.card.sources.check(ask.source)
    return ask.source


def _changes(ask: Ask, fps: float | Literal["auto"]) -> dict[str, Any]:
    """The settings of a stream that were named."""
    height, width = parse_size(ask.size) if ask.size is not None else (None, None)
    named = dict(
        height=height,
        width=width,
        fps=None if fps == "auto" else fps,
        seed=ask.seed,
        steps=ask.steps,
        window=ask.window,
        sink=ask.sink,
        noise_scale=ask.noise_scale,
        kv_bias=ask.kv_bias,
    )
    return {name: value for name, value in named.items() if value is not None}
