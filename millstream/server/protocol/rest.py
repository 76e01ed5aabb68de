"""REST: sessions, controls and what is kept of them, for programs that do not hold a socket.

`ENDPOINTS` is the whole of it, but for branches (`branching.py`). Session ids are not listed: whoever knows
one owns it, if they bring the key that opened it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from millstream.core.client_messages import MAX_CHUNK, Ask, ProtocolError
from millstream.core.controls import AnyControl, Receipt, SetImage, WeightedPrompt
from millstream.core.errors import MillstreamError
from millstream.core.server_messages import Defaults, Takes
from millstream.server.protocol.bodies import first_bytes, limited
from millstream.server.protocol.endpoints import Endpoint, ServerState
from millstream.server.protocol.messages import defaults_of
from millstream.server.sessions.archive import Archive, begun_journal
from millstream.server.sessions.file_store import Kind, within_quota
from millstream.server.sessions.live_session import LiveSession
from millstream.serving.notices import Ended, Waiting

MAX_UPLOAD_BYTES = 2 * 2**30
MEDIA_TYPES: dict[Kind, str] = {
    "recordings": "video/mp4", "journals": "application/jsonl", "snapshots": "application/octet-stream",
}  # fmt: skip


class ControlAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change, at the next chunk that is not planned yet or at a later one."""

    control: AnyControl
    at_chunk: Annotated[int, msgspec.Meta(ge=0, le=MAX_CHUNK)] | None = None


class ReceiptList(msgspec.Struct, frozen=True, kw_only=True):
    receipts: tuple[Receipt, ...]


class RecordingAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    on: bool


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was kept."""

    name: str
    url: str
    bytes: int


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    files: tuple[FileInfo, ...]


class RecordingState(msgspec.Struct, frozen=True, kw_only=True):
    on: bool
    url: str


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A session as anybody may know it."""

    state: str
    """starting, waiting, live or ended"""
    position: int
    """In line; 0 when not."""
    viewers: int
    chunk_index: int | None
    """The last chunk that came."""
    recording: bool


class SessionInfo(SessionSummary, frozen=True, kw_only=True):
    """A session as its owner knows it."""

    session: str
    view: str
    prompts: tuple[WeightedPrompt, ...]
    config: dict[str, Any]
    journal: str
    """Name of its journal once it has ended, at /v1/journals; empty where it has none."""
    shared: int
    """Chunks that it had from a session that began alike: same prompt, seed and settings. They share memory
    until they part."""
    notes: tuple[str, ...]
    """Other notes that its clients were sent, the newest last."""
    cause: str
    reason: str
    """Reason for which it ended, as in `ended`; empty before."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    obstacle: str = ""
    """Why a session could not be; empty where it could."""


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    sessions: tuple[SessionSummary, ...]


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """As OpenAI's clients read it, and what a stream of it is."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """Since when it is served, in seconds of Unix."""
    owned_by: str = "millstream"
    defaults: Defaults
    examples: tuple[str, ...]
    takes: Takes
    """Conditions that steer it besides words."""


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[ModelInfo, ...]


async def list_models(server: ServerState, words: Mapping[str, str], body: None) -> ModelList:
    return ModelList(data=(await show_model(server, {"model": server.hub.card.name}, None),))


async def show_model(server: ServerState, words: Mapping[str, str], body: None) -> ModelInfo:
    card = server.hub.card
    if words["model"] != card.name:
        raise ProtocolError(
            "not_found", f"the model {words['model'][:40]!r} does not exist here; there is {card.name!r}"
        )
    return ModelInfo(
        id=card.name,
        created=int(server.began),
        defaults=defaults_of(card),
        examples=card.examples,
        takes=card.takes,
    )


async def list_sessions(server: ServerState, words: Mapping[str, str], body: None) -> SessionList:
    own = server.hub.live_sessions.of_key(server.client.key)
    return SessionList(sessions=tuple(SessionSummary(**_summary(each)) for each in own))


async def open_session(server: ServerState, words: Mapping[str, str], body: Ask) -> SessionInfo:
    client = server.client
    server.spend_picture(body.image)
    session_id = client.session_to_open()
    return _info(await server.hub.open_asked(body, client=client.name, key=client.key, session_id=session_id))


async def show_session(server: ServerState, words: Mapping[str, str], body: None) -> SessionInfo:
    return _info(server.known_session(words))


async def end_session(server: ServerState, words: Mapping[str, str], body: None) -> None:
    server.session(words).end()


async def check_session(server: ServerState, words: Mapping[str, str], body: Ask) -> Checked:
    live_session = server.session(words)
    try:
        server.hub.service.check(
            server.hub.request_asked(body, live_session.key), instead_of=live_session.session_id
        )
    except MillstreamError as error:
        return Checked(obstacle=str(error))
    return Checked()


async def control_session(server: ServerState, words: Mapping[str, str], body: ControlAsk) -> Receipt:
    server.limits.check_id(body.control.id)
    if isinstance(body.control, SetImage):
        server.spend_picture(body.control.image)
    return await server.session(words).control(body.control, at_chunk=body.at_chunk)


async def list_receipts(server: ServerState, words: Mapping[str, str], body: None) -> ReceiptList:
    return ReceiptList(receipts=server.known_session(words).receipts.all())


async def record_session(server: ServerState, words: Mapping[str, str], body: RecordingAsk) -> RecordingState:
    live_session = server.session(words)
    name = live_session.start_recording() if body.on else await live_session.recordings.stop_asked()
    return RecordingState(on=body.on, url=f"/v1/recordings/{name}")


async def save_session(server: ServerState, words: Mapping[str, str], body: None) -> FileInfo:
    server.client.saves.spend("saves")
    kept = await server.session(words).save()
    return FileInfo(name=kept.name, url=f"/v1/snapshots/{kept.name}", bytes=kept.num_bytes)


async def restore_session(server: ServerState, words: Mapping[str, str], body: None) -> SessionInfo:
    client = server.client
    session_id = client.session_to_open()
    found = await server.hub.restorer.restore(
        words["name"], client=client.name, key=client.key, session_id=session_id
    )
    return _info(found)


async def list_recordings(server: ServerState, words: Mapping[str, str], body: None) -> FileList:
    return _listed(server.archive, "recordings", server.known_session(words).recordings.names)


async def list_snapshots(server: ServerState, words: Mapping[str, str], body: None) -> FileList:
    return _listed(server.archive, "snapshots", server.known_session(words).snapshots)


async def download_live_journal(server: ServerState, words: Mapping[str, str], body: None) -> Response:
    file = begun_journal(server.session(words).request.journal).path.open("rb")
    num_bytes = os.fstat(file.fileno()).st_size  # it goes on growing, and what was promised is sent
    headers = {
        "content-length": str(num_bytes),
        "content-disposition": 'attachment; filename="session.jsonl"',
    }
    return StreamingResponse(
        first_bytes(file, num_bytes), headers=headers, media_type=MEDIA_TYPES["journals"]
    )


async def download_recording(server: ServerState, words: Mapping[str, str], body: None) -> Response:
    """Without a file name: a page's own would not count beside it, and it knows what was shown."""
    kept = server.archive.store.find("recordings", words["name"])
    return FileResponse(
        kept.path, media_type=MEDIA_TYPES["recordings"], headers={"content-disposition": "attachment"}
    )


async def download_journal(server: ServerState, words: Mapping[str, str], body: None) -> Response:
    return _download(server.archive, "journals", words["name"])


async def download_snapshot(server: ServerState, words: Mapping[str, str], body: None) -> Response:
    return _download(server.archive, "snapshots", words["name"])


async def upload_snapshot(server: ServerState, words: Mapping[str, str], body: Request) -> FileInfo:
    archive = server.archive
    key = server.client.key
    server.client.uploads.spend("uploads")
    with server.uploads.one_by(server.client.name):
        pieces = limited(body, MAX_UPLOAD_BYTES)
        kept = await within_quota(
            key, archive.store, lambda: archive.import_snapshot(pieces, owner=server.client.name)
        )
    return FileInfo(name=kept.name, url=f"/v1/snapshots/{kept.name}", bytes=kept.num_bytes)


async def remove_snapshot(server: ServerState, words: Mapping[str, str], body: None) -> None:
    server.archive.store.remove("snapshots", server.archive.store.find("snapshots", words["name"]).name)


ENDPOINTS = (
    Endpoint(method="GET", path="/v1/models", does=list_models, answer=ModelList, says="The model that is served."),
    Endpoint(method="GET", path="/v1/models/{model}", does=show_model, answer=ModelInfo, says="The same, by its name."),
    Endpoint(method="GET", path="/v1/sessions", does=list_sessions, answer=SessionList, says="Sessions without their ids."),
    Endpoint(
        method="POST", path="/v1/sessions", does=open_session, body=Ask, holds_picture=True, answer=SessionInfo, status=201,
        says="A new session; attach to it at /v1/stream to see it.",
    ),
    Endpoint(
        method="GET", path="/v1/sessions/{session}", does=show_session, answer=SessionInfo,
        says="One session; for a while also one that has ended.",
    ),
    Endpoint(method="DELETE", path="/v1/sessions/{session}", does=end_session, status=204, says="End it."),
    Endpoint(
        method="POST", path="/v1/sessions/{session}/check", does=check_session, body=Ask, answer=Checked,
        says="Whether it could begin again as this, or why not; nothing changes.",
    ),
    Endpoint(
        method="POST", path="/v1/sessions/{session}/controls", does=control_session, body=ControlAsk, answer=Receipt,
        holds_picture=True, status=202, says="Steer it; the receipt says at which chunk that can show.",
    ),
    Endpoint(
        method="GET", path="/v1/sessions/{session}/controls", does=list_receipts, answer=ReceiptList,
        says="The last receipt of each control, whoever asked for it: queued, or applied at a chunk. The "
             "newest come last.",
    ),
    Endpoint(
        method="POST", path="/v1/sessions/{session}/recording", does=record_session, body=RecordingAsk, answer=RecordingState,
        says="Start or stop a recording.",
    ),
    Endpoint(
        method="GET", path="/v1/sessions/{session}/recordings", does=list_recordings, answer=FileList,
        says="Its recordings that are whole.",
    ),
    Endpoint(
        method="GET", path="/v1/sessions/{session}/journal", does=download_live_journal, media_type=MEDIA_TYPES["journals"],
        says="Its journal so far, JSON lines; millstream replay runs it again.",
    ),
    Endpoint(
        method="POST", path="/v1/sessions/{session}/snapshots", does=save_session, answer=FileInfo, status=201,
        says="Save it as it is between two chunks.",
    ),
    Endpoint(
        method="GET", path="/v1/sessions/{session}/snapshots", does=list_snapshots, answer=FileList,
        says="What was saved of it.",
    ),
    Endpoint(
        method="GET", path="/v1/recordings/{name}", does=download_recording, media_type=MEDIA_TYPES["recordings"],
        says="A recording, mp4.",
    ),
    Endpoint(
        method="GET", path="/v1/journals/{name}", does=download_journal, media_type=MEDIA_TYPES["journals"],
        says="The journal of a session that has ended.",
    ),
    Endpoint(
        method="GET", path="/v1/snapshots/{name}", does=download_snapshot, media_type=MEDIA_TYPES["snapshots"],
        says="A snapshot, safetensors.",
    ),
    Endpoint(method="DELETE", path="/v1/snapshots/{name}", does=remove_snapshot, status=204, says="Remove it."),
    Endpoint(
        method="POST", path="/v1/snapshots", does=upload_snapshot, body=bytes, reads_itself=True, answer=FileInfo,
        status=201, says="Bring a snapshot from elsewhere.",
    ),
    Endpoint(
        method="POST", path="/v1/snapshots/{name}/sessions", does=restore_session, answer=SessionInfo, status=201,
        says="Go on with a snapshot, as a new session.",
    ),
)  # fmt: skip


def _summary(live_session: LiveSession) -> dict[str, Any]:
    waiting = live_session.status if isinstance(live_session.status, Waiting) else None
    return dict(
        state="starting" if live_session.status is None else type(live_session.status).__name__.lower(),
        position=0 if waiting is None else waiting.position,
        viewers=len(live_session.viewers),
        chunk_index=None if live_session.last_chunk is None else live_session.last_chunk.index,
        recording=live_session.recordings.active is not None,
    )


def _info(live_session: LiveSession) -> SessionInfo:
    return SessionInfo(
        **_summary(live_session),
        session=live_session.session_id,
        view=live_session.view_id,
        prompts=live_session.prompts,
        config=live_session.config_now(),
        journal=live_session.journal_name,
        shared=live_session.shared,
        notes=tuple(note.words for note in live_session.viewers.notes),
        cause=live_session.status.cause if isinstance(live_session.status, Ended) else "",
        reason=live_session.status.reason if isinstance(live_session.status, Ended) else "",
    )


def _listed(archive: Archive, kind: Kind, names: Iterable[str]) -> FileList:
    kept = [archive.store.get(kind, name) for name in names]
    files = tuple(
        FileInfo(name=k.name, url=f"/v1/{kind}/{k.name}", bytes=k.num_bytes) for k in kept if k is not None
    )
    return FileList(files=files)


def _download(archive: Archive, kind: Kind, name: str) -> Response:
    kept = archive.store.find(kind, name)
    return FileResponse(kept.path, media_type=MEDIA_TYPES[kind], filename=kept.path.name)
