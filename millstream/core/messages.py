"""The native protocol's messages, both ways, as in docs/protocol.md. One definition for server, client and load.

Plain data: knows no sockets and no sessions. What a client says is read strictly, an unknown field is refused; what a server
says may have fields that an older client does not know.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, cast, get_args

import msgspec

from millstream.core.controls import AnyControl, AskedPrompt, Receipt, SetPrompt, Switch, WeightedPrompt
from millstream.core.errors import MillstreamError

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

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
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
    kv_bias: float | None = None
    """How much past frames weigh in attention."""
    lead_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_LEAD_S)] | None = None
    """How far generation may be ahead of the viewer."""
    input: bool = False
    """Whether frames will be sent."""
    source: str = ""
    """Instead of those: the name of a video that the server offers (`hello`)."""
    wait: bool = False
    """Whether to stand in line if there is no room."""
    unattended: Literal["pause", "run"] = "pause"
    """What it does while nobody watches."""
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 1.0
    """Below 1 it gives way to others: in line, and where there is not enough for all. Nobody can ask for more than anybody."""


class ClientMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True, omit_defaults=True
):
    """Base of what a client says."""


class Start(Ask, frozen=True, kw_only=True, tag_field="type", tag="start"):
    version: Literal[1]
    formats: tuple[str, ...] = ("jpeg",)
    follow: bool = False
    """Whether the client goes elsewhere when it is told `moved`; so of all that open a connection."""


class Attach(ClientMessage, frozen=True, kw_only=True, tag="attach"):
    version: Literal[1]
    session: str
    formats: tuple[str, ...] = ("jpeg",)
    follow: bool = False
    seen: int = -1
    """The last chunk that the client has: what comes is what follows it."""
    ahead_s: float = 0.0
    """What the client has yet to play, so that a session that goes on elsewhere gets no further ahead of it than before."""


class View(ClientMessage, frozen=True, kw_only=True, tag="view"):
    version: Literal[1]
    view: str
    formats: tuple[str, ...] = ("jpeg",)
    follow: bool = False
    seen: int = -1


class Restore(ClientMessage, frozen=True, kw_only=True, tag="restore"):
    version: Literal[1]
    snapshot: str
    formats: tuple[str, ...] = ("jpeg",)
    follow: bool = False


class Steer(ClientMessage, frozen=True, kw_only=True, tag="control"):
    control: AnyControl
    at_chunk: Annotated[int, msgspec.Meta(ge=0, le=MAX_CHUNK)] | None = None
    again: bool = False
    """Whether it was sent before and not answered: one that has arrived is answered, and does not apply twice."""


class DraftPrompt(ClientMessage, frozen=True, kw_only=True, tag="draft"):
    """A control that is being typed; without one, none is any more. Not answered."""

    control: SetPrompt | None = None


class Record(ClientMessage, frozen=True, kw_only=True, tag="record"):
    on: bool


class Save(ClientMessage, frozen=True, kw_only=True, tag="save"):
    pass


class OutputAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Send the pictures to an address, until the session ends or this is stopped."""

    url: str
    """rtmp://HOST/APP/KEY, rtmps://HOST/APP/KEY or srt://HOST:PORT"""
    kbps: Annotated[int, msgspec.Meta(ge=100, le=MAX_KBPS)] | None = None
    """At most so many kilobits a second; None: as fits the size."""


class StartOutput(OutputAsk, frozen=True, kw_only=True, tag_field="type", tag="output"):
    pass


class StopOutput(ClientMessage, frozen=True, kw_only=True, tag="stop_output"):
    output: str


class Fork(ClientMessage, frozen=True, kw_only=True, tag="fork"):
    """Another session that goes on from here, or from before an earlier chunk that is kept."""

    at_chunk: Annotated[int, msgspec.Meta(ge=0, le=MAX_CHUNK)] | None = None


class Rewind(ClientMessage, frozen=True, kw_only=True, tag="rewind"):
    """Go back to before a chunk that is kept."""

    chunk: Annotated[int, msgspec.Meta(ge=0, le=MAX_CHUNK)]


class Keep(ClientMessage, frozen=True, kw_only=True, tag="keep"):
    """End all other branches that this one was forked with."""


class PreviewAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Small pictures of what the stream could become next. Changes nothing."""

    prompts: tuple[str, ...] = ()
    """Without any, the server suggests some near the one in force."""
    mode: Switch = "recompute"


class Preview(PreviewAsk, frozen=True, kw_only=True, tag_field="type", tag="preview"):
    pass


class Ping(ClientMessage, frozen=True, kw_only=True, tag="ping"):
    t: float = 0.0


class End(ClientMessage, frozen=True, kw_only=True, tag="stop"):
    pass


Opening = Start | Attach | View | Restore
AnyClientMessage = (
    Start | Attach | View | Restore | Steer | DraftPrompt | Preview | Record | Save | Fork | Rewind | Keep | Ping | End
    | StartOutput | StopOutput
)  # fmt: skip


class ServerMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of what the server says in text."""


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    size: str
    fps: float
    steps: tuple[float, ...]
    window: int
    sink: int
    lead_s: float
    noise_scale: float
    seed: int


class Hello(ServerMessage, frozen=True, kw_only=True, tag="hello"):
    version: int = VERSION
    model: str
    formats: tuple[Format, ...] = FORMATS
    defaults: Defaults
    limits: dict[str, float]
    examples: tuple[str, ...]
    moves: bool = False
    """Whether sessions can go on at another address, for clients that `follow`."""
    sources: tuple[str, ...] = ()
    """What a session may name as its `source`."""


class WaitingMessage(ServerMessage, frozen=True, kw_only=True, tag="waiting"):
    position: int
    expected_wait_s: float | None
    reason: str


class LiveMessage(ServerMessage, frozen=True, kw_only=True, tag="live"):
    session: str
    """Empty for those who only watch."""
    view: str
    format: Format
    config: dict[str, Any]
    paused: bool
    note: str
    journal: str = ""
    """The name its journal has once it has ended; empty where it has none, and for those who only watch."""


class RateMessage(ServerMessage, frozen=True, kw_only=True, tag="rate"):
    """Chunks from the next one on play at another frame rate."""

    fps: float
    lead_s: float
    note: str


class ReceiptMessage(ServerMessage, frozen=True, kw_only=True, tag="receipt"):
    control_id: str
    state: Literal["queued", "applied"]
    chunk_index: int


class Stats(ServerMessage, frozen=True, kw_only=True, tag="stats"):
    """How a session does; once a second, to everybody who watches."""

    continuity: float
    ahead_s: float
    stalled_s: float
    misses: int
    viewers: int
    utilisation: float
    shared: int = 0
    """Chunks that it had from a session that began alike."""


class RecordingMessage(ServerMessage, frozen=True, kw_only=True, tag="recording"):
    on: bool
    url: str


class Saved(ServerMessage, frozen=True, kw_only=True, tag="saved"):
    snapshot: str
    bytes: int


OutputState = Literal["connecting", "live", "retrying", "failed", "ended"]


class OutputInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Pictures that are sent to an address."""

    output: str
    url: str
    """Without its path and query, where stream keys are."""
    state: OutputState
    reason: str
    """Why it is not live; empty while all is well."""
    kbps: int
    frames: int
    """That were sent."""
    dropped: int
    """Chunks that the receiver was too slow for."""
    reconnects: int


class OutputList(msgspec.Struct, frozen=True, kw_only=True):
    outputs: tuple[OutputInfo, ...]


class OutputsMessage(OutputList, ServerMessage, frozen=True, kw_only=True, tag="outputs"):
    """All outputs of the session, to its owner: after each that was started or stopped, and to one who comes back."""


class Forked(ServerMessage, frozen=True, kw_only=True, tag="forked"):
    """A branch is there: attach to it on another connection."""

    session: str
    view: str
    chunk: int
    """The first that can differ from its parent's."""
    from_chunk: int
    """The first that comes; those before `chunk` are its parent's."""
    exact: bool
    """Whether it gives its parent's bits for as long as it is steered alike. If not, its window was rebuilt."""
    note: str


class Rewound(ServerMessage, frozen=True, kw_only=True, tag="rewound"):
    """The session has gone back; fields as in `forked`."""

    chunk: int
    from_chunk: int
    exact: bool
    note: str


class BranchKept(ServerMessage, frozen=True, kw_only=True, tag="kept"):
    ended: int
    """Other branches that end."""


class FuturePicture(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
    jpeg: bytes
    """In base64; empty where it was not made."""


class FutureList(msgspec.Struct, frozen=True, kw_only=True):
    futures: tuple[FuturePicture, ...]
    note: str
    """Why some were not made; empty where all were."""


class Previews(FutureList, ServerMessage, frozen=True, kw_only=True, tag="previews"):
    """What the stream could become; steer there to have it."""


class NoteMessage(ServerMessage, frozen=True, kw_only=True, tag="note"):
    """Something to know; the stream goes on."""

    message: str


class Pong(ServerMessage, frozen=True, kw_only=True, tag="pong"):
    t: float


class ErrorMessage(ServerMessage, frozen=True, kw_only=True, tag="error"):
    code: Code
    message: str
    control_id: str = ""
    offer: dict[str, Any] | None = None
    """Of a refused `start`: fields with which it would not be."""


class MovedMessage(ServerMessage, frozen=True, kw_only=True, tag="moved"):
    """The last message of a connection: what was asked for, or its session, goes on at another address."""

    url: str
    ticket: str
    """What lets the client in there, once, within a minute."""


class EndedMessage(ServerMessage, frozen=True, kw_only=True, tag="ended"):
    cause: str
    reason: str
    kept: bool = False
    """Whether the next server brings it back: `attach` to it then."""


class OpeningHeader(ServerMessage, frozen=True, kw_only=True, tag="init"):
    """Before the bytes that a decoder needs first."""

    format: Format = "mp4"


class ChunkHeader(ServerMessage, frozen=True, kw_only=True, tag="chunk"):
    """Before a chunk's pictures."""

    index: int
    epoch: int
    media_s: float
    fps: float
    frames: int
    format: Format
    sizes: tuple[int, ...]
    prompts: tuple[WeightedPrompt, ...]
    unknown: tuple[str, ...]
    receipts: tuple[Receipt, ...]
    total_ms: float
    phases_ms: dict[str, float]
    late_s: float
    dropped: int


Told = (
    Hello
    | WaitingMessage
    | LiveMessage
    | RateMessage
    | ReceiptMessage
    | Stats
    | RecordingMessage
    | Saved
    | OutputsMessage
    | Forked
    | Rewound
    | BranchKept
    | Previews
    | NoteMessage
    | Pong
    | ErrorMessage
    | MovedMessage
    | EndedMessage
)
"""What a server says in text."""
Header = OpeningHeader | ChunkHeader
"""What it says before bytes."""


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How HTTP says no, a socket that is not let in included."""

    error: ErrorBody
