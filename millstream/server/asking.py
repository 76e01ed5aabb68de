"""What a session may be asked to be, in a client's words, and the session that comes of it. Any protocol's business."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from millstream.core.controls import AskedPrompt, weighed
from millstream.core.errors import ConfigError, PromptError
from millstream.runtime.engine import stream_config
from millstream.runtime.rates import RateKind
from millstream.server.hub import Hub
from millstream.server.keys import NAMELESS, Key
from millstream.server.station import Station

MAX_LEAD_S = 60.0


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new session. What is not said is as the model was made for."""

    prompt: str = ""
    prompts: tuple[AskedPrompt, ...] = ()
    """Instead of one prompt: a mix."""
    size: str | None = None
    """HEIGHTxWIDTH"""
    fps: float | Literal["auto"] | None = None
    """Frames a second; "auto": what the device keeps, up to the rate the model was made for. None: as the server has it."""
    strict: bool = False
    """Whether to be refused rather than play slower than asked for."""
    seed: int | None = None
    steps: tuple[float, ...] | None = None
    window: int | None = None
    sink: int | None = None
    noise_scale: float | None = None
    lead_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_LEAD_S)] | None = None
    """How far generation may be ahead of the viewer."""
    input: bool = False
    """Whether frames will be sent."""
    wait: bool = False
    """Whether to stand in line if there is no room."""
    unattended: Literal["pause", "run"] = "pause"
    """What it does while nobody watches."""
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 1.0
    """Below 1 it gives way to others: in line, and where there is not enough for all. Nobody can ask for more than anybody."""


def open_asked(hub: Hub, ask: Ask, *, client: str = "", key: Key = NAMELESS) -> Station:
    if bool(ask.prompt) == bool(ask.prompts):
        raise PromptError("a session needs either prompt or prompts, not both and not neither")
    fps = ask.fps
    if fps is None:
        fps = "auto" if hub.card.fps == "auto" else key.capped(hub.card.fps)
    rate: RateKind = "auto" if fps == "auto" else "strict" if ask.strict else "asked"
    if rate == "auto" and ask.strict:
        raise ConfigError("strict needs a frame rate to be strict about: name fps, or leave strict out")
    return hub.open(
        weighed(ask.prompts, ask.prompt),
        stream_config(hub.card.stream, **_changes(ask, fps)),
        rate=rate,
        lead_s=ask.lead_s,
        may_wait=ask.wait,
        unattended=ask.unattended,
        weight=ask.weight,
        takes_input=ask.input,
        client=client,
        key=key,
    )


def parse_size(text: str) -> tuple[int, int]:
    """HEIGHTxWIDTH"""
    height, cross, width = text.lower().partition("x")
    if not (cross and height.isdecimal() and width.isdecimal() and len(text) <= 16):
        raise ConfigError(f"size must be HEIGHTxWIDTH, for example 256x256, got {text[:40]!r}")
    return int(height), int(width)


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
    )
    return {name: value for name, value in named.items() if value is not None}
