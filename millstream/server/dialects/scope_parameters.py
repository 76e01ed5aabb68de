"""Scope's `parameters` data channel: a JSON object of whatever is to change, and what became of it.

Every parameter that means something here becomes a control with two receipts; one that does not is answered with a `note`, so
that nothing is silently ignored. Knows no HTTP and no WebRTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from millstream.core.controls import (
    MAX_BLEND_CHUNKS,
    AnyControl,
    AskedPrompt,
    Cut,
    Pause,
    Receipt,
    Resume,
    SetKVBias,
    SetNoiseScale,
    SetPrompt,
    SetSteps,
)
from millstream.core.errors import MillstreamError
from millstream.core.messages import Ask, ErrorMessage, RecordingMessage
from millstream.server.access.budgets import ClientAccount
from millstream.server.access.limits import ClientLimits
from millstream.server.dialects.interpreter import GOOD_ENDS, Fields, Interpreter, heed
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.live_session import TapeLost
from millstream.server.sessions.outbox import Outbox
from millstream.serving.notices import Applied, Ended, Noted

Interpolation = Literal["linear", "slerp"]


class Transition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    target_prompts: tuple[AskedPrompt, ...]
    num_steps: Annotated[int, msgspec.Meta(ge=0, le=MAX_BLEND_CHUNKS)] = 4
    """Chunks; 0: at once."""
    temporal_interpolation_method: Interpolation = "linear"


class ScopeParameters(msgspec.Struct, frozen=True, kw_only=True):
    prompts: tuple[AskedPrompt, ...] | None = None
    prompt_interpolation_method: Interpolation = "linear"
    transition: Transition | None = None
    denoising_step_list: tuple[float, ...] | None = None
    noise_scale: float | None = None
    kv_cache_attention_bias: float | None = None
    manage_cache: bool | None = None
    """Whether a new prompt rebuilds what the stream remembers."""
    reset_cache: bool = False
    paused: bool | None = None
    recording: bool | None = None
    input_mode: Literal["text", "video"] | None = None
    """In an offer's first parameters: whether the client's video is the input."""


class ChannelMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of what the server says."""


class ParameterReceipt(ChannelMessage, frozen=True, kw_only=True, tag="receipt"):
    parameter: str
    state: Literal["queued", "applied"]
    chunk_index: int


class Note(ChannelMessage, frozen=True, kw_only=True, tag="note"):
    parameter: str
    message: str


class ParameterError(ChannelMessage, frozen=True, kw_only=True, tag="error"):
    parameter: str
    error_message: str


class ScopeRecording(ChannelMessage, frozen=True, kw_only=True, tag="recording"):
    recording: bool
    url: str


class StreamStopped(ChannelMessage, frozen=True, kw_only=True, tag="stream_stopped"):
    error_message: str | None


class ScopeChannel:
    def __init__(self, hub: SessionHub, outbox: Outbox, limits: ClientLimits, client: ClientAccount | None = None) -> None:
        self.interpreter = Interpreter(hub, outbox, limits, client)
        self._outbox = outbox
        self._rebuilds = True
        self._num_controls = 0

    @property
    def refusals(self) -> int:
        return self.interpreter.refusals

    def leave(self) -> None:
        self.interpreter.leave()

    async def start(self, ask: Ask, first: ScopeParameters, unknown: tuple[str, ...]) -> bool:
        """Whether there is a session now, with all that its first parameters say."""
        self._rebuilds = first.manage_cache is not False
        if not await self.interpreter.start(ask, "raw"):
            return False
        if first.paused:
            await self.interpreter.steer(Pause(id=self._name("paused")))
        if first.recording:
            await self.interpreter.record(True)
        self._note_left_out(first, unknown)
        return True

    async def hear(self, data: str | bytes) -> None:
        try:
            await self._apply(self.interpreter.read_json(data))
        except MillstreamError as error:
            self.interpreter.refuse(error)

    def say(self, item: Any) -> list[str]:
        match item:
            case Receipt():
                said: list[ChannelMessage] = [_receipt(item)]
            case Applied(receipts=receipts):
                said = [_receipt(receipt) for receipt in receipts]
            case ErrorMessage(message=message, control_id=control_id):
                said = [ParameterError(parameter=_parameter(control_id), error_message=message)]
            case RecordingMessage(on=on, url=url):
                said = [ScopeRecording(recording=on, url=url)]
            case Noted(words=words):
                said = [Note(parameter="", message=words)]
            case TapeLost(name=name):
                said = [ScopeRecording(recording=False, url=f"/v1/recordings/{name}" if name else "")]
            case Ended(cause=cause, reason=reason):
                said = [StreamStopped(error_message=None if cause in GOOD_ENDS else reason)]
            case ChannelMessage():
                said = [item]
            case _:
                said = []
        return [msgspec.json.encode(message).decode() for message in said]

    async def _apply(self, fields: Fields) -> None:
        parameters, unknown = heed(fields, ScopeParameters)
        if parameters.manage_cache is not None:
            self._rebuilds = parameters.manage_cache
        for control in self._controls(parameters):
            await self.interpreter.steer(control)
        if parameters.recording is not None:
            await self.interpreter.record(parameters.recording)
        if parameters.input_mode is not None:
            self._outbox.put(Note(parameter="input_mode", message="a session's input is chosen with its offer"))
        self._note_left_out(parameters, unknown)

    def _controls(self, asked: ScopeParameters) -> Iterator[AnyControl]:
        if asked.reset_cache:
            yield Cut(id=self._name("reset_cache"))
        if asked.prompts is not None:
            yield SetPrompt(id=self._name("prompts"), prompts=asked.prompts, mode="recompute" if self._rebuilds else "keep")
        if asked.transition is not None:
            yield self._transition(asked.transition)
        if asked.denoising_step_list is not None:
            yield SetSteps(id=self._name("denoising_step_list"), steps=asked.denoising_step_list)
        if asked.noise_scale is not None:
            yield SetNoiseScale(id=self._name("noise_scale"), noise_scale=asked.noise_scale)
        if asked.kv_cache_attention_bias is not None:
            yield SetKVBias(id=self._name("kv_cache_attention_bias"), kv_bias=asked.kv_cache_attention_bias)
        if asked.paused is not None:
            yield Pause(id=self._name("paused")) if asked.paused else Resume(id=self._name("paused"))

    def _transition(self, transition: Transition) -> SetPrompt:
        control_id, prompts = self._name("transition"), transition.target_prompts
        if transition.num_steps == 0:
            return SetPrompt(id=control_id, prompts=prompts, mode="recompute" if self._rebuilds else "keep")
        return SetPrompt(id=control_id, prompts=prompts, mode="blend", chunks=transition.num_steps)

    def _note_left_out(self, asked: ScopeParameters, unknown: tuple[str, ...]) -> None:
        for name in unknown:
            self._outbox.put(Note(parameter=name, message="means nothing here and was left out"))
        temporal = asked.transition is not None and asked.transition.temporal_interpolation_method == "slerp"
        if temporal or asked.prompt_interpolation_method == "slerp":
            name = "temporal_interpolation_method" if temporal else "prompt_interpolation_method"
            self._outbox.put(Note(parameter=name, message="prompts are mixed linearly here"))

    def _name(self, parameter: str) -> str:
        self._num_controls += 1
        return f"{parameter}#{self._num_controls}"


def _receipt(receipt: Receipt) -> ParameterReceipt:
    return ParameterReceipt(parameter=_parameter(receipt.control_id), state=receipt.state, chunk_index=receipt.chunk_index)


def _parameter(control_id: str) -> str:
    return control_id.partition("#")[0]
