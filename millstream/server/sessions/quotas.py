"""One more snapshot, if what its key may keep has room for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from millstream.core.errors import Overloaded
from millstream.server.access.keys import Key
from millstream.server.sessions.file_store import FileStore, Kept


async def within_quota(key: Key, store: FileStore, keep: Callable[[], Awaitable[Kept]]) -> Kept:
    """Refused before anything is written where one is too many. How large it is shows afterwards: then it is removed again."""
    num_files, num_bytes = store.held("snapshots")
    key.check_snapshots(num_files + 1, num_bytes)
    kept = await keep()
    try:
        key.check_snapshots(*store.held("snapshots"))
    except Overloaded:
        store.remove("snapshots", kept.name)
        raise
    return kept
