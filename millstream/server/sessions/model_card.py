"""Card of the model that is served: what clients are sent of it and may ask of it, in a client's words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from millstream.core.client_messages import Ask
from millstream.core.config import NO_CONDITIONS, ActionsConfig, ConditionsConfig, StreamConfig, parse_size
from millstream.core.controls import as_mix, check_prompts
from millstream.core.errors import ConfigError, PromptError
from millstream.core.keys import Key
from millstream.core.reading import PromptReading
from millstream.core.server_messages import Takes
from millstream.engine.engine import stream_config
from millstream.server.sessions.sources import Sources
from millstream.session.pacing import RateKind


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCard:
    name: str
    stream: StreamConfig
    read: Callable[[str], PromptReading]
    """Function that says what the model makes of a text's words."""
    examples: tuple[str, ...]
    fps: float | Literal["auto"] = "auto"
    """Frame rate where a client names none."""
    lead_s: float | None = None
    """Seconds that a stream is ahead of its viewer, where a client names none; None: two chunks."""
    moves: bool = False
    """True if sessions can go on at another server."""
    sources: Sources = field(default_factory=Sources)
    conditions: ConditionsConfig = NO_CONDITIONS
    """Conditions that steer the model besides words."""

    @property
    def takes(self) -> Takes:
        """Return what clients may send besides words."""
        actions = self.conditions.actions or ActionsConfig()
        return Takes(
            image=True,
            keys=actions.keys,
            look=actions.look,
            axes=actions.axes,
            camera=self.conditions.camera,
        )

    def request_arguments(self, ask: Ask, key: Key) -> dict[str, Any]:
        """Return a client's ask as the arguments of `SessionHub.request`. Raises what is wrong with it."""
        if bool(ask.prompt) == bool(ask.prompts):
            raise PromptError("a session needs either prompt or prompts, not both and not neither")
        check_prompts(prompts := as_mix(ask.prompts, ask.prompt))
        fps = ask.fps
        if fps is None:
            fps = "auto" if self.fps == "auto" else key.capped(self.fps)
        rate: RateKind = "auto" if fps == "auto" else "strict" if ask.strict else "asked"
        if rate == "auto" and ask.strict:
            raise ConfigError("strict needs a frame rate to be strict about: name fps, or leave strict out")
        return dict(
            prompts=prompts,
            config=stream_config(self.stream, **_changes(ask, fps)),
            rate=rate,
            lead_s=ask.lead_s,
            may_wait=ask.wait,
            unattended=ask.unattended,
            weight=ask.weight,
            source=self._source(ask),
        )

    def _source(self, ask: Ask) -> str | None:
        """Return what the session restyles: None for nothing, a source's name, or "" for what its owner
        sends."""
        if not ask.source:
            return "" if ask.input else None
        if ask.input:
            raise ConfigError("a session has a source or is sent frames: leave source or input out")
        self.sources.check(ask.source)
        return ask.source


def _changes(ask: Ask, fps: float | Literal["auto"]) -> dict[str, Any]:
    """Return the settings of a stream that were named."""
    height, width = parse_size(ask.size) if ask.size is not None else (None, None)
    named = dict(
        height=height,
        width=width,
        fps=None if fps == "auto" else fps,
        seed=ask.seed,
        steps=ask.steps,
        first_steps=ask.first_steps,
        window=ask.window,
        sink=ask.sink,
        noise_scale=ask.noise_scale,
        kv_bias=ask.kv_bias,
    )
    return {name: value for name, value in named.items() if value is not None}
