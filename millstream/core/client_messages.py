"""Messages that a client sends in the native protocol, as in docs/protocol.md. One definition for server,
client and load.

Plain data: knows no sockets and no sessions. Decoding is strict, an unknown field is refused; the messages of
servers are in `core/server_messages.py`.
"""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal, cast, get_args

import msgspec

from millstream.core.controls import AnyControl, AskedPrompt, SetPrompt, Switch
from millstream.core.errors import ConfigError, MillstreamError

VERSION: Final = 1
Code = Literal[
    "bad_message", "bad_version", "bad_state", "refused", "bad_control", "not_found", "too_large", "too_fast", "read_only",
    "not_kept", "failed",
]  # fmt: skip
MAX_CHUNK = 2**53
"""Whole numbers that every JSON reader keeps as they are."""
MAX_LEAD_S = 60.0
MAX_KBPS = 50_000
Format = Literal["mp4", "webp", "jpeg", "raw"]
FORMATS = cast(tuple[Format, ...], get_args(Format))


class ProtocolError(MillstreamError):
    """Something a client asked for that cannot be; its connection goes on."""

    def __init__(self, code: Code, message: str, control_id: str = "") -> None:
        """`control_id` is that of the control which cannot be, where it is not known otherwise."""
        super().__init__(message)
        self.code: Code = code
        self.control_id = control_id


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A new session, which this connection owns. Fields left out are as in `hello.defaults`."""

    prompt: str = ""
    """Text of what the stream shows, up to 8,192 bytes. A session has this or `prompts`, not both."""
    prompts: tuple[AskedPrompt, ...] = ()
    """Instead of one prompt: a mix of up to 8."""
    size: str | None = None
    """HEIGHTxWIDTH in multiples of 16, for Wan 2.2 of 32, as "256x320"."""
    fps: float | Literal["auto"] | None = None
    """Frames a second, 0.1 to 240; "auto": what the device keeps, up to the rate the model was made for.
    null: as the server was started, mostly "auto"."""
    strict: bool = False
    """True: be refused rather than play slower than `fps`."""
    seed: int | None = None
    """Seed of the noise, 0 to 2^63 - 1: the same one gives the same stream."""
    steps: tuple[float, ...] | None = None
    """Noise levels that decrease, 1000 to above 0: one model call each."""
    first_steps: tuple[float, ...] | None = None
    """Noise levels of the first chunk, and of the first after each cut; give those of `steps` for one like
    all others."""
    window: int | None = None
    """Latent frames that a chunk attends to, up to 1024."""
    sink: int | None = None
    """How many of the first frames never leave the window."""
    noise_scale: float | None = None
    """Video to video: share of noise mixed into the input, above 0, at most 1. Means nothing without `input`
    or `source`."""
    kv_bias: float | None = None
    """How much past frames weigh in attention, above 0, at most 1; below 1 a stream changes its mind more
    easily."""
    lead_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_LEAD_S)] | None = None
    """How far generation may be ahead of the viewer."""
    image: bytes = b""
    """Picture to begin from: a PNG, JPEG, WebP, GIF, BMP or TIFF file in base64, or a clip, whose end is taken;
    at most `max_frame_bytes` and 50 megapixels."""
    fit: Literal["crop", "pad"] = "crop"
    """Fitting of `image` to the stream's shape: cut at the sides, or with borders."""
    input: bool = False
    """True: the client sends frames, which the stream then restyles."""
    source: str = ""
    """Name of a video that the server offers (`hello.sources`, docs/inputs.md), instead of frames from the
    client."""
    wait: bool = False
    """True: wait in line if there is no room."""
    unattended: Literal["pause", "run"] = "pause"
    """Behaviour while no client watches the session."""
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 1.0
    """Priority: below 1 it gives way to others, in line and where there is not enough for all. No session can
    have more than 1."""

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite: JSON would have null in their place, which means something
        else."""
        numbers = {
            "fps": self.fps,
            "noise_scale": self.noise_scale,
            "kv_bias": self.kv_bias,
            "lead_s": self.lead_s,
        }
        for name, number in numbers.items():
            if isinstance(number, float) and not math.isfinite(number):
                raise ConfigError(f"{name} must be a number, got {number}")


class ClientMessage(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Base of the messages that a client sends."""


class Start(Ask, frozen=True, kw_only=True, tag_field="type", tag="start"):
    version: Literal[1]
    """Version of this protocol; any other is refused before the rest is read. All messages that open a
    connection have it."""
    formats: tuple[str, ...] = ("jpeg",)
    """Formats that the client can show, best first; unknown names are passed over. All messages that open a
    connection have them."""
    follow: bool = False
    """True: the client goes on at another address when it receives `moved`. All messages that open a
    connection have it."""


class Attach(ClientMessage, frozen=True, kw_only=True, tag="attach"):
    """Come back to a session of one's own, after a lost connection or after the server was started anew with
    `--keep`."""

    version: Literal[1]
    session: str
    """From `live` or `forked`. Whoever knows it owns the session."""
    formats: tuple[str, ...] = ("jpeg",)
    follow: bool = False
    seen: int = -1
    """The last chunk that the client has: what comes is what follows it."""
    ahead_s: float = 0.0
    """Seconds that the client has yet to play, so that a session that goes on elsewhere gets no further ahead
    of it than before."""


class View(ClientMessage, frozen=True, kw_only=True, tag="view"):
    """Watch the session of another client; a viewer may not steer."""

    version: Literal[1]
    view: str
    """The view link, from `live`."""
    formats: tuple[str, ...] = ("jpeg",)
    follow: bool = False
    seen: int = -1


class Restore(ClientMessage, frozen=True, kw_only=True, tag="restore"):
    """Go on with a saved session, as a new one."""

    version: Literal[1]
    snapshot: str
    """Its name, from `saved`."""
    formats: tuple[str, ...] = ("jpeg",)
    follow: bool = False


class Steer(ClientMessage, frozen=True, kw_only=True, tag="control"):
    """Change the session at a chunk's beginning. Answered by a `receipt`, or by an `error` with its
    `control_id`."""

    control: AnyControl
    """One of the controls below."""
    at_chunk: Annotated[int, msgspec.Meta(ge=0, le=MAX_CHUNK)] | None = None
    """The chunk it waits for. null: the next one that is not planned yet."""
    again: bool = False
    """True if it was sent before and not answered: one that has arrived is answered, and does not apply
    twice."""


class DraftPrompt(ClientMessage, frozen=True, kw_only=True, tag="draft"):
    """Prompt that is being typed, so that an idle server generates it ahead (docs/forking.md#looking-ahead).
    Changes nothing and is not answered."""

    control: SetPrompt | None = None
    """A `prompt` control. null: none any more."""


class Record(ClientMessage, frozen=True, kw_only=True, tag="record"):
    """Begin or end a recording (mp4). Answered by `recording`."""

    on: bool
    """Begin, or end."""


class Save(ClientMessage, frozen=True, kw_only=True, tag="save"):
    """Keep the session's state on the server. Answered by `saved`."""


class OutputAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Send the pictures to an address until the session ends or this is stopped, where `--allow-output` lets
    the server (docs/outputs.md). Answered by `outputs`."""

    url: str
    """rtmp://HOST/APP/KEY, rtmps://HOST/APP/KEY, srt://HOST:PORT, v4l2://videoN or ndi://NAME"""
    kbps: Annotated[int, msgspec.Meta(ge=100, le=MAX_KBPS)] | None = None
    """At most so many kilobits a second. null: as fits the size."""


class StartOutput(OutputAsk, frozen=True, kw_only=True, tag_field="type", tag="output"):
    pass


class StopOutput(ClientMessage, frozen=True, kw_only=True, tag="stop_output"):
    """End an output. Answered by `outputs`."""

    output: str
    """Its name, from `outputs`."""


class Fork(ClientMessage, frozen=True, kw_only=True, tag="fork"):
    """Another session that goes on from here, or from before an earlier chunk that is kept: a branch
    (docs/forking.md). Answered by `forked`."""

    at_chunk: Annotated[int, msgspec.Meta(ge=0, le=MAX_CHUNK)] | None = None
    """The chunk before which it begins. null: as it is now."""


class Rewind(ClientMessage, frozen=True, kw_only=True, tag="rewind"):
    """Go back to before a chunk that is kept; what came from there on did not happen. Answered by
    `rewound`."""

    chunk: Annotated[int, msgspec.Meta(ge=0, le=MAX_CHUNK)]
    """The first that is made anew."""


class Keep(ClientMessage, frozen=True, kw_only=True, tag="keep"):
    """End all other branches that this session was forked with. Answered by `kept`."""


class PreviewAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Small pictures of what the stream could become next (docs/forking.md#previews). Changes nothing.
    Answered by `previews`."""

    prompts: tuple[str, ...] = ()
    """Up to 4 texts; without any, the server suggests some near the one in force."""
    mode: Switch = "recompute"
    """As of a `prompt` control."""


class Preview(PreviewAsk, frozen=True, kw_only=True, tag_field="type", tag="preview"):
    pass


class Ping(ClientMessage, frozen=True, kw_only=True, tag="ping"):
    """Answered by `pong`, at any time."""

    t: float = 0.0
    """Any number, such as the client's time."""


class End(ClientMessage, frozen=True, kw_only=True, tag="stop"):
    """End the session at once. Answered by `ended`."""


Opening = Start | Attach | View | Restore
AnyClientMessage = (
    Start | Attach | View | Restore | Steer | DraftPrompt | Preview | Record | Save | Fork | Rewind | Keep | Ping | End
    | StartOutput | StopOutput
)  # fmt: skip
