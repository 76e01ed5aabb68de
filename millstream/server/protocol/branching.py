"""REST for branches: fork a session, rewind it, keep one branch, see which there are, and which there could
be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from starlette.responses import Response, StreamingResponse

from millstream.core.client_messages import MAX_CHUNK, PreviewAsk
from millstream.core.server_messages import FutureList
from millstream.server.protocol.endpoints import Endpoint, ServerState
from millstream.server.protocol.rest import MEDIA_TYPES
from millstream.server.sessions.live_session import LiveSession
from millstream.session.journal_path import as_lines

ChunkIndex = Annotated[int, msgspec.Meta(ge=0, le=MAX_CHUNK)]


class ForkAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As it is now, or before an earlier chunk that is kept."""

    at_chunk: ChunkIndex | None = None


class RewindAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    chunk: ChunkIndex


class RewindInfo(msgspec.Struct, frozen=True, kw_only=True):
    chunk: int
    """First chunk that can be other than it was."""
    from_chunk: int
    """First chunk that is sent; those before `chunk` are sent as they were."""
    exact: bool
    """True if all that follows has the bits it would have had. If not, the window was rebuilt."""
    note: str


class ForkInfo(RewindInfo, frozen=True, kw_only=True):
    session: str
    view: str


class KeepInfo(msgspec.Struct, frozen=True, kw_only=True):
    ended: int
    """Other branches that end."""


class BranchInfo(msgspec.Struct, frozen=True, kw_only=True):
    session: str
    view: str
    parent: str
    """Empty for the one that all come from."""
    chunk: int | None
    """The first in which it can differ from its parent."""
    chunk_index: int | None
    """The last that came."""
    prompt: str


class BranchList(msgspec.Struct, frozen=True, kw_only=True):
    branches: tuple[BranchInfo, ...]
    chunks: tuple[int, ...]
    """Chunks of the requested session that it can go back to."""
    states: tuple[int, ...]
    """Chunks among these with a whole state: from them on, all that is kept is reached exactly."""


async def fork_session(server: ServerState, words: Mapping[str, str], body: ForkAsk) -> ForkInfo:
    branch, went = await server.hub.branches.fork(server.session(words), body.at_chunk)
    return ForkInfo(session=branch.session_id, view=branch.view_id, **went.as_answer())


async def rewind_session(server: ServerState, words: Mapping[str, str], body: RewindAsk) -> RewindInfo:
    went = await server.hub.branches.rewind(server.session(words), body.chunk)
    return RewindInfo(**went.as_answer())


async def keep_branch(server: ServerState, words: Mapping[str, str], body: None) -> KeepInfo:
    return KeepInfo(ended=server.hub.branches.end_others(server.session(words)))


async def preview_futures(server: ServerState, words: Mapping[str, str], body: PreviewAsk) -> FutureList:
    live_session = server.session(words)
    server.client.previews.spend("previews")
    return await live_session.preview(body.prompts, body.mode)


async def list_branches(server: ServerState, words: Mapping[str, str], body: None) -> BranchList:
    live_session = server.session(words)
    chunks, states = await server.hub.branches.kept_chunks(live_session)
    tree = tuple(_info(branch) for branch in server.hub.live_sessions.of_tree(live_session))
    return BranchList(branches=tree, chunks=chunks, states=states)


async def download_path(server: ServerState, words: Mapping[str, str], body: None) -> Response:
    journal = await server.hub.branches.path_of(server.session(words))
    headers = {"content-disposition": 'attachment; filename="path.jsonl"'}
    return StreamingResponse(as_lines(journal), headers=headers, media_type=MEDIA_TYPES["journals"])


BRANCHING = (
    Endpoint(
        method="POST", path="/v1/sessions/{session}/forks", does=fork_session, body=ForkAsk, answer=ForkInfo, status=201,
        says="Fork it, as it is now or before an earlier chunk that is kept; attach to the branch to see it.",
    ),
    Endpoint(
        method="POST", path="/v1/sessions/{session}/rewind", does=rewind_session, body=RewindAsk, answer=RewindInfo,
        says="Go back to before a chunk that is kept.",
    ),
    Endpoint(
        method="POST", path="/v1/sessions/{session}/keep", does=keep_branch, answer=KeepInfo,
        says="Keep this branch: end all others that it was forked with.",
    ),
    Endpoint(
        method="POST", path="/v1/sessions/{session}/previews", does=preview_futures, body=PreviewAsk, answer=FutureList,
        says="Small pictures of what it could become, of given prompts or of suggested ones; made while the "
             "device is idle.",
    ),
    Endpoint(
        method="GET", path="/v1/sessions/{session}/branches", does=list_branches, answer=BranchList,
        says="All live branches that it was forked with, and the chunks of it that can be gone back to.",
    ),
    Endpoint(
        method="GET", path="/v1/sessions/{session}/path", does=download_path, media_type=MEDIA_TYPES["journals"],
        says="All that led to where it is, over its parents' journals, as one; millstream replay runs it "
             "again.",
    ),
)  # fmt: skip


def _info(branch: LiveSession) -> BranchInfo:
    last = branch.last_chunk
    return BranchInfo(
        session=branch.session_id,
        view=branch.view_id,
        parent=branch.lineage.parent_id,
        chunk=branch.lineage.forked_at,
        chunk_index=None if last is None else last.index,
        prompt=branch.prompts[0].text,
    )
