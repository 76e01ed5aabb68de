"""Messages that a server sends in the native protocol, as in docs/protocol.md. One definition for server,
client and load.

Plain data. A message may have fields that an older client does not know; the messages of clients are in
`core/client_messages.py`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from millstream.core.client_messages import FORMATS, VERSION, Code, Format
from millstream.core.controls import Receipt, WeightedPrompt


class ServerMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of the messages that the server sends as text."""


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    size: str
    """HEIGHTxWIDTH"""
    fps: float
    """Rate that the model was made for."""
    steps: tuple[float, ...]
    first_steps: tuple[float, ...] | None = None
    """null: as `steps`."""
    window: int
    sink: int
    lead_s: float
    noise_scale: float
    seed: int


class Takes(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that the model takes, besides words."""

    image: bool = False
    """True if a stream can begin from a picture, or go on from one."""
    keys: tuple[str, ...] = ()
    """Names of the keys that steer it; empty: none do."""
    look: bool = False
    """True if the view turns by `look` of an `actions` control."""
    axes: int = 0
    """Number of a gamepad's axes that it takes."""
    camera: bool = False
    """True if it takes `camera` controls."""


class Hello(ServerMessage, frozen=True, kw_only=True, tag="hello"):
    """The first message of every connection."""

    version: int = VERSION
    """Version of this protocol."""
    model: str
    """Name of the model that is served."""
    formats: tuple[Format, ...] = FORMATS
    """Formats that it can send."""
    defaults: Defaults
    """Values for fields that a session's `start` leaves out."""
    limits: dict[str, float]
    """Limits of this connection, by name: the table under Limits."""
    examples: tuple[str, ...]
    """Prompts that suit the model."""
    moves: bool = False
    """True if sessions can go on at another address, for clients that `follow`."""
    sources: tuple[str, ...] = ()
    """Names that a session may have as its `source`."""
    takes: Takes = Takes()
    """Conditions that steer the model besides words; other controls are refused."""


class WaitingMessage(ServerMessage, frozen=True, kw_only=True, tag="waiting"):
    """The session waits in line; sent again whenever its position changes, until `live` or `ended`."""

    position: int
    """1 is next."""
    expected_wait_s: float | None
    """null where it is not known."""
    reason: str
    """Why it has no place yet."""
    session: str = ""
    """To `attach` with after a lost connection: it keeps its position for ten seconds. Empty for those who
    only watch, and in a fleet, whose line is the gateway's."""


class LiveMessage(ServerMessage, frozen=True, kw_only=True, tag="live"):
    """The session has its place, or has it back after it was moved to host memory. Also the answer to
    `attach`, `view` and `restore`."""

    session: str
    """To `attach` with; a secret. Empty for those who only watch."""
    view: str
    """The view link, to give away."""
    format: Format
    """Format of the pictures: the first of `formats` that there is."""
    config: dict[str, Any]
    """Settings of the stream: the table under Pictures."""
    paused: bool
    """True if it is paused."""
    note: str
    """Terms on which it has its place, such as a frame rate that is lower than asked for; may be empty."""
    journal: str = ""
    """The name its journal has once it has ended; empty where it has none, and for those who only watch."""
    recording: str = ""
    """Where the recording that runs can be fetched once it has ended; empty where none runs, and for those
    who only watch."""
    recorded_s: float = 0.0
    """How much that recording holds so far."""


class RateMessage(ServerMessage, frozen=True, kw_only=True, tag="rate"):
    """Chunks from the next one on play at another frame rate."""

    fps: float
    """The new one."""
    lead_s: float
    """How far the server may be ahead then."""
    note: str
    """Why."""


class ReceiptMessage(ServerMessage, frozen=True, kw_only=True, tag="receipt"):
    """Sent for every control, twice: `queued` to the client that asked, `applied` to all clients that watch,
    right before the chunk it first shows in."""

    control_id: str
    """The control's `id`, or one that the server made up."""
    state: Literal["queued", "applied"]
    """State of the control."""
    chunk_index: int
    """queued: the first chunk it can apply at; applied: the chunk it did apply at."""


class Stats(ServerMessage, frozen=True, kw_only=True, tag="stats"):
    """State and figures of a session; sent once a second while it is live, to all clients that watch."""

    continuity: float
    """Share of the time since the first picture in which the picture moved; 1 is all of it."""
    ahead_s: float
    """How much is made and not shown yet, by the viewer's clock."""
    stalled_s: float
    """How long that clock has stood still for want of pictures, in all."""
    misses: int
    """Chunks that came too late for it."""
    viewers: int
    """Clients that watch now, the owner among them."""
    utilisation: float
    """Share of the device that all sessions ask for; above 1 it is overloaded."""
    shared: int = 0
    """Chunks that it had from a session that began alike (docs/forking.md#sessions-that-begin-alike)."""
    paused: bool = False
    """True if its owner has paused it."""
    key_ms: float | None = None
    """Milliseconds from the arrival of an `actions` control that changed something to its chunk being handed to
    the clients that watch, the last time that it was measured. null: not yet."""


class RecordingMessage(ServerMessage, frozen=True, kw_only=True, tag="recording"):
    """After `record`; also to the owner when a recording ends because the disk fails."""

    on: bool
    """True if it runs."""
    url: str
    """Where it can be fetched once it has ended; empty where nothing of it could be kept."""


class Saved(ServerMessage, frozen=True, kw_only=True, tag="saved"):
    """After `save`."""

    snapshot: str
    """Its name, for `restore`, and at /v1/snapshots/NAME."""
    bytes: int
    """How large it is."""


OutputState = Literal["connecting", "live", "retrying", "failed", "ended"]


class OutputInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Pictures that are sent to an address."""

    output: str
    """Its name, for `stop_output`."""
    url: str
    """Without its path and query, where stream keys are."""
    state: OutputState
    """State of the output."""
    reason: str
    """Why it is not live; empty while all is well."""
    kbps: int
    """The most kilobits that are sent a second."""
    frames: int
    """Frames that were sent."""
    dropped: int
    """Chunks that the receiver was too slow for."""
    reconnects: int
    """How often it was tried again."""


class OutputList(msgspec.Struct, frozen=True, kw_only=True):
    outputs: tuple[OutputInfo, ...]
    """All that the session has."""


class OutputsMessage(OutputList, ServerMessage, frozen=True, kw_only=True, tag="outputs"):
    """All outputs of the session, to its owner: after each that was started or stopped, and to one who comes
    back."""


class Forked(ServerMessage, frozen=True, kw_only=True, tag="forked"):
    """After `fork`: a branch is there. Attach to it on another connection."""

    session: str
    """The branch's."""
    view: str
    """The branch's view link."""
    chunk: int
    """The first that can differ from its parent's."""
    from_chunk: int
    """The first that comes; those before `chunk` are its parent's."""
    exact: bool
    """True if it gives its parent's bits for as long as it is steered alike. If not, its window was
    rebuilt."""
    note: str
    """Further notes; may be empty."""


class Rewound(ServerMessage, frozen=True, kw_only=True, tag="rewound"):
    """After `rewind`: the session has gone back. Chunks count on from there, `media_s` goes on."""

    chunk: int
    from_chunk: int
    exact: bool
    note: str


class BranchKept(ServerMessage, frozen=True, kw_only=True, tag="kept"):
    """After `keep`."""

    ended: int
    """Other branches that end."""


class FuturePicture(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
    """Prompt that would give this picture."""
    jpeg: bytes
    """In base64; empty where the device had no idle time for it."""


class FutureList(msgspec.Struct, frozen=True, kw_only=True):
    futures: tuple[FuturePicture, ...]
    """One for each prompt."""
    note: str
    """Why some were not made; empty where all were."""


class Previews(FutureList, ServerMessage, frozen=True, kw_only=True, tag="previews"):
    """After `preview`, within some 5 s: what the stream could become; steer there to have it."""


class NoteMessage(ServerMessage, frozen=True, kw_only=True, tag="note"):
    """Something to know, such as a journal that ends because the server's disk is full, or an output that has
    lost its receiver; the stream goes on. To all who watch, once, and to those who come later."""

    message: str
    """One line."""


class Pong(ServerMessage, frozen=True, kw_only=True, tag="pong"):
    """After `ping`."""

    t: float
    """That of the `ping`."""


class ErrorMessage(ServerMessage, frozen=True, kw_only=True, tag="error"):
    """Something asked for cannot be; the stream goes on unless `ended` follows."""

    code: Code
    """One of those below."""
    message: str
    """Cause and remedy, in one line."""
    control_id: str = ""
    """`id` of the control that the error is about, also if the rest of the control is unreadable."""
    offer: dict[str, Any] | None = None
    """Fields with which a refused `start` would be accepted, `{"fps": 9}` or `{"wait": true}`."""


class MovedMessage(ServerMessage, frozen=True, kw_only=True, tag="moved"):
    """The last message of a connection, to a client that sent `follow`: what it asked for, or its session,
    goes on at another address (docs/protocol.md#a-session-that-moves)."""

    url: str
    """http://HOST:PORT of that server."""
    ticket: str
    """Ticket that admits the client there, once, within half a minute."""


class EndedMessage(ServerMessage, frozen=True, kw_only=True, tag="ended"):
    """The last message: the session is over, and the connection is closed."""

    cause: str
    """One of those below."""
    reason: str
    """Cause in words."""
    kept: bool = False
    """True if the server stops and the next one brings the session back (`serve --keep`): `attach` to it
    then."""


class OpeningHeader(ServerMessage, frozen=True, kw_only=True, tag="init"):
    """Before the bytes that a decoder of mp4 needs first, before its first fragment."""

    format: Format = "mp4"
    """No other has any."""


class ChunkHeader(ServerMessage, frozen=True, kw_only=True, tag="chunk"):
    """Before a chunk's pictures."""

    index: int
    """Counts chunks from 0."""
    epoch: int
    """Counts pictures begun anew: 0, and one more with every `cut`."""
    media_s: float
    """Where in the stream its first frame lies."""
    fps: float
    """Rate at which its frames play."""
    frames: int
    """How many it has; the first of an epoch has fewer."""
    format: Format
    """As `live` said."""
    sizes: tuple[int, ...]
    """Bytes of each part of the payload: one part a frame, of mp4 one fragment. Empty where they were
    dropped."""
    prompts: tuple[WeightedPrompt, ...]
    """The mix in force; its weights sum to 1."""
    unknown: tuple[str, ...]
    """Words of it that the model does not know."""
    understood: dict[str, str] = msgspec.field(default_factory=dict)
    """Words and phrases of it that the model was not taught, each with what it reads in their place."""
    receipts: tuple[Receipt, ...]
    """Controls that first show here."""
    total_ms: float
    """How long it took, from plan to frames."""
    phases_ms: dict[str, float]
    """Where that went."""
    late_s: float
    """How long the viewer had run dry when it came; 0 when in time."""
    dropped: int
    """Chunks whose pictures were left out so far, because this client reads too slowly."""


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
"""Messages that a server sends as text."""
Header = OpeningHeader | ChunkHeader
"""Messages that a server sends before bytes."""


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How HTTP says no, a socket that is not let in included."""

    error: ErrorBody
