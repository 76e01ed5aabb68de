"""Scope's `parameters` data channel: a JSON object of whatever is to change, and what became of it.

Every parameter that changes something here becomes a control with two receipts: Scope's page sends some of
them again as they are, which changes nothing. One that means nothing is answered with a `note`, once. Knows
no HTTP and no WebRTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from millstream.core.client_messages import Ask
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
    Switch,
)
from millstream.core.errors import MillstreamError
from millstream.core.server_messages import ErrorMessage, RecordingMessage
from millstream.server.access.budgets import ClientAccount
from millstream.server.access.limits import ClientLimits
from millstream.server.dialects.interpreter import GOOD_ENDS, Fields, Interpreter, heed
from millstream.server.dialects.pictures import picture_of
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.outbox import Outbox
from millstream.server.sessions.recordings import RecordingFailed
from millstream.serving.notices import Applied, Ended, Noted

Interpolation = Literal["linear", "slerp"]


class Transition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    target_prompts: tuple[AskedPrompt, ...]
    num_steps: Annotated[int, msgspec.Meta(ge=0, le=MAX_BLEND_CHUNKS)] = 4
    """Chunks; 0: at once."""
    temporal_interpolation_method: Interpolation = "linear"


class ScopeParameters(msgspec.Struct, frozen=True, kw_only=True):
    prompts: tuple[AskedPrompt | str, ...] | None = None
    prompt_interpolation_method: Interpolation = "linear"
    transition: Transition | None = None
    denoising_step_list: tuple[float, ...] | None = None
    noise_scale: float | None = None
    kv_cache_attention_bias: float | None = None
    manage_cache: bool | None = None
    """True if a new prompt rebuilds what the stream remembers."""
    reset_cache: bool | None = None
    paused: bool | None = None
    recording: bool | None = None
    input_mode: Literal["text", "video"] | None = None
    """In an offer's first parameters: whether the client's video is the input."""
    pipeline_ids: tuple[str, ...] | None = None
    node_id: str | None = None
    """Which node of a graph this is for: there is one."""
    first_frame_image: Any = None
    """In an offer's first parameters: a picture to begin from, in base64."""
    produces_video: bool | None = None
    """As the status said it."""

    @property
    def mix(self) -> tuple[AskedPrompt, ...]:
        return tuple(AskedPrompt(text=each) if isinstance(each, str) else each for each in self.prompts or ())


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
    def __init__(
        self, hub: SessionHub, outbox: Outbox, limits: ClientLimits, client: ClientAccount | None = None
    ) -> None:
        self.interpreter = Interpreter(hub, outbox, limits, client)
        self._outbox = outbox
        self._rebuilds = True
        self._num_controls = 0
        stream = hub.card.stream
        self._sent: dict[str, object] = dict(
            denoising_step_list=stream.steps, kv_cache_attention_bias=stream.kv_bias
        )
        """The last of each parameter that was taken, and what holds where nothing was said."""

    @property
    def refusals(self) -> int:
        return self.interpreter.refusals

    def on_disconnect(self) -> None:
        self.interpreter.on_disconnect()

    async def start(self, ask: Ask, first: ScopeParameters, unknown: tuple[str, ...]) -> bool:
        """Start a session with its first parameters; return whether there is one now."""
        self._rebuilds = first.manage_cache is not False
        if not await self.interpreter.start(ask, "raw"):
            return False
        said = dict(
            prompts=first.mix,
            denoising_step_list=first.denoising_step_list,
            noise_scale=first.noise_scale,
            kv_cache_attention_bias=first.kv_cache_attention_bias,
        )
        self._sent |= {name: value for name, value in said.items() if value not in (None, ())}
        if first.paused:
            await self.interpreter.steer(Pause(id=self._name("paused")))
        if first.recording:
            await self.interpreter.record(True)
        self._note_left_out(first, unknown)
        return True

    async def first_picture(self, first: ScopeParameters) -> bytes:
        """Return the picture to begin from; nothing where there is none."""
        name = "first_frame_image"
        return await picture_of(
            self.interpreter,
            name,
            first.first_frame_image,
            lambda words: self._outbox.put(Note(parameter=name, message=words)),
        )

    async def on_message(self, data: str | bytes) -> None:
        try:
            await self._apply(await self.interpreter.read_json(data))
        except MillstreamError as error:
            self.interpreter.refuse(error)

    def encode(self, item: Any) -> list[str]:
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
            case RecordingFailed(name=name):
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
        for control, value in self._controls(parameters):
            await self._steer(control, value)
        if parameters.recording is not None:
            await self.interpreter.record(parameters.recording)
        if parameters.input_mode is not None:
            self._outbox.put(
                Note(parameter="input_mode", message="a session's input is chosen with its offer")
            )
        if parameters.first_frame_image:
            self._note_left_out(parameters, ("first_frame_image",))
        self._note_left_out(parameters, unknown)

    def _controls(self, asked: ScopeParameters) -> Iterator[tuple[AnyControl, object]]:
        """Each with what was asked for, to know it again."""
        if asked.reset_cache:
            yield Cut(id=self._name("reset_cache")), None
        if self._is_new("prompts", asked.mix or None):
            mode: Switch = "recompute" if self._rebuilds else "keep"
            yield SetPrompt(id=self._name("prompts"), prompts=asked.mix, mode=mode), asked.mix
        elif asked.prompts == ():
            yield SetPrompt(id=self._name("prompts")), None  # which is refused in its own words
        if asked.transition is not None:
            yield self._transition(asked.transition), None
        if asked.denoising_step_list is not None and self._is_new(
            "denoising_step_list", asked.denoising_step_list
        ):
            steps = asked.denoising_step_list
            yield SetSteps(id=self._name("denoising_step_list"), steps=steps), steps
        if asked.noise_scale is not None and self._is_new("noise_scale", asked.noise_scale):
            yield (
                SetNoiseScale(id=self._name("noise_scale"), noise_scale=asked.noise_scale),
                asked.noise_scale,
            )
        if asked.kv_cache_attention_bias is not None and self._is_new(
            "kv_cache_attention_bias", asked.kv_cache_attention_bias
        ):
            bias = asked.kv_cache_attention_bias
            yield SetKVBias(id=self._name("kv_cache_attention_bias"), kv_bias=bias), bias
        if asked.paused is not None:
            yield (Pause(id=self._name("paused")) if asked.paused else Resume(id=self._name("paused"))), None

    def _is_new(self, parameter: str, value: object) -> bool:
        return value is not None and value != self._sent.get(parameter)

    async def _steer(self, control: AnyControl, value: object) -> None:
        """Remembered where it was not refused."""
        await self.interpreter.steer(control)
        if value is not None and self.refusals == 0:
            self._sent[_parameter(control.id)] = value
        if isinstance(control, SetPrompt) and _parameter(control.id) == "transition":
            self._sent.pop("prompts", None)

    def _transition(self, transition: Transition) -> SetPrompt:
        control_id = self._name("transition")
        prompts = transition.target_prompts
        if transition.num_steps == 0:
            return SetPrompt(id=control_id, prompts=prompts, mode="recompute" if self._rebuilds else "keep")
        return SetPrompt(id=control_id, prompts=prompts, mode="blend", chunks=transition.num_steps)

    def _note_left_out(self, asked: ScopeParameters, unknown: tuple[str, ...]) -> None:
        for name in self.interpreter.unsaid(unknown):
            self._outbox.put(Note(parameter=name, message="means nothing here and was left out"))
        temporal = asked.transition is not None and asked.transition.temporal_interpolation_method == "slerp"
        if temporal or asked.prompt_interpolation_method == "slerp":
            name = "temporal_interpolation_method" if temporal else "prompt_interpolation_method"
            self._outbox.put(Note(parameter=name, message="prompts are mixed linearly here"))

    def _name(self, parameter: str) -> str:
        self._num_controls += 1
        return f"{parameter}#{self._num_controls}"


def _receipt(receipt: Receipt) -> ParameterReceipt:
    return ParameterReceipt(
        parameter=_parameter(receipt.control_id), state=receipt.state, chunk_index=receipt.chunk_index
    )


def _parameter(control_id: str) -> str:
    return control_id.partition("#")[0]
