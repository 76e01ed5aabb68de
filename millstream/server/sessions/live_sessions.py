"""The sessions of a server, found by their names: by `session_id`, which steers one, or by `view_id`, which
only shows it.

Both are unguessable. The last sessions that ended are still described for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from millstream.core.errors import UnknownSession
from millstream.core.keys import NAMELESS, Key
from millstream.server.sessions.live_session import LiveSession

MAX_ENDED = 64


class LiveSessions(Mapping[str, LiveSession]):
    """Live sessions by their `session_id`, in the order they were opened."""

    def __init__(self) -> None:
        self._live: dict[str, LiveSession] = {}
        self._views: dict[str, LiveSession] = {}
        self._ended: OrderedDict[str, LiveSession] = OrderedDict()

    def __getitem__(self, session_id: str) -> LiveSession:
        return self._live[session_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._live)

    def __len__(self) -> int:
        return len(self._live)

    @property
    def num_views(self) -> int:
        """Number of links that show a live session."""
        return len(self._views)

    def add(self, live_session: LiveSession) -> None:
        self._live[live_session.session_id] = live_session
        for view_id in (live_session.view_id, *live_session.other_views):
            self._views[view_id] = live_session

    def remove(self, live_session: LiveSession) -> None:
        """It has ended. The oldest of those that did is forgotten."""
        del self._live[live_session.session_id]
        for view_id in (live_session.view_id, *live_session.other_views):
            if self._views.get(view_id) is live_session:
                del self._views[view_id]
        self._ended[live_session.session_id] = live_session
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def find(self, session_id: str, key: Key = NAMELESS) -> LiveSession:
        """Return the session of this id, for the key that opened it; to others it is not there."""
        live_session = self._live.get(session_id)
        return _checked(live_session if live_session is not None and live_session.key == key else None)

    def find_known(self, session_id: str, key: Key = NAMELESS) -> LiveSession:
        """Like `find`, also of one that has ended."""
        ended = self._ended.get(session_id)
        if session_id not in self and ended is not None and ended.key == key:
            return ended
        return self.find(session_id, key)

    def find_view(self, view_id: str) -> LiveSession:
        return _checked(self._views.get(view_id))

    def of_key(self, key: Key) -> list[LiveSession]:
        return [live_session for live_session in self.values() if live_session.key == key]

    def of_tree(self, live_session: LiveSession) -> list[LiveSession]:
        """Return the live branches of its tree, itself among them, in the order they began."""
        return [other for other in self.values() if other.lineage.tree == live_session.lineage.tree]

    def show_instead(self, goes: LiveSession, stays: LiveSession) -> None:
        """Move the viewers and view links of `goes`, a session about to end, to the session `stays`."""
        for view_id in goes.give_views():
            self._views.pop(stays.add_view(view_id), None)
            self._views[view_id] = stays
        for viewer in list(goes.viewers):
            if viewer.go_along is not None:
                viewer.go_along(stays)


def _checked(live_session: LiveSession | None) -> LiveSession:
    if live_session is None or live_session.ended:
        raise UnknownSession("there is no such session; it may have ended")
    return live_session
