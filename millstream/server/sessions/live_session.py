"""One session on the event loop's side: what the engine tells it goes to all who watch, in order.

The engine's thread hands notices over with `tell` and goes on. Here they wait in line for a task of its own,
which has each chunk encoded once for every format somebody watches in, in a pool of threads, and puts it into
the viewers' outboxes. When encoding falls behind, the oldest frames that wait are let go; everything else
about their chunk still comes.

Its parts have state of their own: where it stands (`live_state.py`), its viewers (`viewers.py`), its
recordings, its receipts, the keys that are held (`held_keys.py`), what is asked of it while it moves
(`session_handoff.py`). Nothing else sets an attribute here. Knows no protocol:
`server/protocol/conversation.py` and others turn what is in an outbox into messages."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import msgspec

from millstream.core import tracing
from millstream.core.client_messages import Format, ProtocolError
from millstream.core.config import StreamConfig
from millstream.core.controls import (
    AnyControl,
    Pause,
    Receipt,
    SetActions,
    SetImage,
    SetPrompt,
    Switch,
    WeightedPrompt,
)
from millstream.core.errors import ControlError, MillstreamError, NotAllowed, UnknownSession
from millstream.core.examples import near
from millstream.core.keys import NAMELESS, Key
from millstream.core.reading import PromptReading
from millstream.core.server_messages import FutureList, MovedMessage, Stats
from millstream.server.sessions.archive import Archive, SessionJournal
from millstream.server.sessions.encodings import ChunkEncodings
from millstream.server.sessions.file_store import Kept, within_quota
from millstream.server.sessions.futures import preview
from millstream.server.sessions.held_keys import RELEASED, HeldKeys
from millstream.server.sessions.host_meter import HostMeter
from millstream.server.sessions.live_state import LiveState, Status
from millstream.server.sessions.metrics import Metrics
from millstream.server.sessions.outbox import Outbox
from millstream.server.sessions.receipts import KnownReceipts
from millstream.server.sessions.recordings import MAX_LISTED, SessionRecordings, Spawn
from millstream.server.sessions.session_handoff import Farewell, SessionHandoff, counted
from millstream.server.sessions.viewers import Viewer, Viewers
from millstream.serving.notices import Applied, Ended, Live, Noted, Notice, Rated, Waiting
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest, label
from millstream.session.chunk import Chunk
from millstream.video.encoding import Frames
from millstream.video.pictures import Fit, FittedPicture

log = logging.getLogger(__name__)

MAX_BACKLOG = 4
"""Chunks that may wait to be encoded with their frames."""
GIVEN_AGAIN = 3
"""Most chunks that a client that comes back is sent."""
LOGGED = 40
"""Most letters of a control's id that are logged."""
READ_S = 30.0
"""Seconds for a kept session to be read, where a client steers it already."""
LOOK_S = 0.01
"""From one look to the next, whether it has been read."""
ACTIONS_ID = "actions"
"""Id of an `actions` control whose client names none: those that wait for one chunk become one."""
ANSWERED_S = 5.0
"""For what was asked of a session to have its answer, before it moves."""


def about_picture(note: str) -> str:
    """Return what viewers are sent about a picture that was fitted."""
    return f"about your picture: {note}"


@dataclass(slots=True)
class _Greeting:
    """A new viewer that wants to see something now."""

    viewer: Viewer


@dataclass(frozen=True, slots=True)
class _BetweenChunks:
    """Something to be done after all chunks that came before it and before all that come after it."""

    act: Callable[[], None]


_Incoming = Notice | _Greeting | _BetweenChunks
FitPicture = Callable[[bytes, StreamConfig, Fit], Awaitable[FittedPicture]]


class StateLog(Protocol):
    """Keeps sessions for a restart (`keeper.py`), each by its id; one that it does not keep is passed
    over."""

    async def log_control(self, session_id: str, control: AnyControl, receipt: Receipt) -> None:
        """Keep a control, before its receipt goes out."""

    async def log_shown(self, session_id: str, chunk: int) -> None:
        """Keep the index of a chunk, before it is shown."""

    async def write_state(self, session_id: str) -> None:
        """Leave the state of a session that stands still where another server finds it."""

    def release(self, session_id: str) -> None:
        """Keep no more of it, and what was kept stays when it ends."""


@dataclass(slots=True)
class LiveSessionParts:
    """Parts that all live sessions use and none owns."""

    service: Service
    pool: Executor
    read: Callable[[tuple[WeightedPrompt, ...]], PromptReading]
    """Function that returns the words of a mix that mean nothing to the model."""
    metrics: Metrics
    meter: HostMeter
    archive_of: Callable[[Key], Archive]
    """Function that returns the archive of a key. Raises where nothing is kept."""
    spawn: Spawn
    fit: FitPicture
    """Function that reads a picture, or the end of a clip, as large as a stream's frames."""
    keys: tuple[str, ...] | None = None
    """Keys that steer the model; None: it takes none."""
    state_log: StateLog | None = None
    clock: Callable[[], float] = field(default=time.monotonic)


@dataclass(frozen=True, slots=True)
class Lineage:
    """Origin of a session."""

    tree: str
    """First session of all that were forked from each other."""
    parent_id: str = ""
    """Session that a branch was forked from."""
    forked_at: int | None = None
    """First chunk in which it can differ from that."""


class _Inbox:
    """Queue of what waits to be passed on. Of chunks, only the newest `MAX_BACKLOG` keep their frames."""

    def __init__(self) -> None:
        self._items: deque[_Incoming] = deque()
        self._more = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[_Incoming]:
        return iter(self._items)

    def put(self, item: _Incoming) -> None:
        self._items.append(item)
        waiting = [
            (at, each) for at, each in enumerate(self._items) if isinstance(each, Chunk) and len(each.frames)
        ]
        assert len(waiting) <= MAX_BACKLOG + 1, f"{len(waiting)} chunks wait with their frames"
        if len(waiting) > MAX_BACKLOG:
            oldest, chunk = waiting[0]
            self._items[oldest] = chunk.without_frames()
        self._more.set()

    async def next(self) -> _Incoming:
        while not self._items:
            self._more.clear()
            await self._more.wait()
        return self._items.popleft()

    def clear(self) -> None:
        self._items.clear()


class LiveSession:
    def __init__(
        self,
        request: OpenRequest,
        view_id: str,
        parts: LiveSessionParts,
        *,
        client: str = "",
        key: Key = NAMELESS,
        lineage: Lineage | None = None,
        other_views: Iterable[str] = (),
    ) -> None:
        self.request = request
        self.session_id = request.session_id
        self.view_id = view_id
        self.client = client
        """Address that opened it."""
        self.key = key
        """Key that it belongs to."""
        self.lineage = lineage or Lineage(request.tree or request.session_id)
        self.state = LiveState()
        self.begun = parts.clock()
        self.viewers = Viewers(self.begun)
        self.recordings = SessionRecordings(
            self.session_id,
            client,
            partial(parts.archive_of, key),
            parts.spawn,
            note=lambda words: self.tell(Noted(words=words)),
            failed=self.viewers.put,
        )
        self.receipts = KnownReceipts()
        self.keys = HeldKeys()
        self._noted_keys = False
        self.handoff = SessionHandoff(self.state)
        self.last_chunk: Chunk | None = None
        """The last chunk that came, without its frames."""
        self.shared = 0
        """Chunks that it had from a session that began alike, a second ago."""
        self.key_ms: float | None = None
        """Milliseconds from a key to its chunk, as measured last."""
        self.snapshots: deque[str] = deque(maxlen=MAX_LISTED)
        """Names of what was saved of it, the newest last; the oldest are forgotten here first."""
        self.journal_name = ""
        """Name of its journal; empty where nothing is written."""
        if isinstance(request.journal, SessionJournal):
            request.journal.tell = self.tell
            self.journal_name = request.journal.name
        self._other_views = deque(other_views, maxlen=MAX_LISTED)
        self._is_awaited = False
        self._parts = parts
        self._loop = asyncio.get_running_loop()
        self._inbox = _Inbox()
        self._latest: deque[Chunk] = deque(maxlen=GIVEN_AGAIN)
        self._encodings = ChunkEncodings(parts.pool)
        self._before_next: set[asyncio.Future[None]] = set()
        """Controls that have to be logged before the next chunk is shown."""

    def tell(self, notice: Notice) -> None:
        """Hand a notice over and return. Called on the engine's thread."""
        self._loop.call_soon_threadsafe(self._receive, notice)

    def between_chunks(self, act: Callable[[], None]) -> None:
        """Have `act` done on the event loop once all chunks that have come are passed on, and before any
        later one is. Called on any thread. Of a session that has ended, or ends first, it is done after that:
        a caller that waits is answered."""
        self._loop.call_soon_threadsafe(self._enqueue, _BetweenChunks(act))

    @property
    def status(self) -> Status | None:
        """The engine's last word on how it does; None before the first."""
        return self.state.status

    @property
    def ended(self) -> bool:
        return self.state.has_ended

    @property
    def is_being_read(self) -> bool:
        """Return whether it was kept, is admitted, and is now being read from storage."""
        return self.status is None and self.request.start is not None

    @property
    def never_began(self) -> bool:
        """Return whether it has stood in line ever since it was opened."""
        return isinstance(self.status, Waiting) and self.last_chunk is None

    @property
    def fps(self) -> float:
        """Frames a second that it plays at for now."""
        return self.status.fps if isinstance(self.status, Live) else self.request.config.fps

    @property
    def paused(self) -> bool:
        timeline = self._parts.service.timeline(self.session_id)
        return timeline is not None and timeline.paused

    @property
    def config(self) -> StreamConfig:
        """Configuration as its controls have made it."""
        timeline = self._parts.service.timeline(self.session_id)
        return self.request.config if timeline is None else timeline.over(self.request.config)

    def config_now(self) -> dict[str, Any]:
        """Return what it is by now, as the answers of every protocol have it."""
        request = self.request
        return asdict(self.config) | {
            "fps": self.fps,
            "asked_fps": request.config.fps,
            "lead_s": request.lead_at(self.fps),
            "rate": request.rate,
            "source": request.source,
            "input": request.takes_frames,
        }

    @property
    def prompts(self) -> tuple[WeightedPrompt, ...]:
        """Prompts of the last chunk that came, or those that it was opened with."""
        return self.request.prompts if self.last_chunk is None else self.last_chunk.prompts

    @property
    def backlog(self) -> int:
        """Number of items that wait to be encoded and passed on."""
        return len(self._inbox)

    # Who watches.

    @property
    def other_views(self) -> tuple[str, ...]:
        """Links of branches that ended when this one was kept: they show it now."""
        return tuple(self._other_views)

    def add_view(self, view_id: str) -> str:
        """Be shown under the link of a branch that ends; return the oldest such link if it must go for this,
        or nothing."""
        oldest = self._other_views[0] if len(self._other_views) == MAX_LISTED else ""
        self._other_views.append(view_id)
        return oldest

    def give_views(self) -> tuple[str, ...]:
        """Return all links that show it, and keep only its own."""
        views = (self.view_id, *self._other_views)
        self._other_views.clear()
        return views

    def join(
        self, format: Format, outbox: Outbox, *, owner: bool = False, follows: bool = False, seen: int = -1
    ) -> Viewer:
        """Watch: how things stand comes at once, then the last chunk, then all that follow, but for those it
        has `seen`. An owner is always let in."""
        self._refuse_when_ended()
        self.viewers.check_room(owner=owner)
        self._parts.service.watch(self.session_id)
        while (goes := self.viewers.who_makes_room()) is not None:
            self.viewers.send_away(goes)
            self.remove_viewer(goes)
        viewer = Viewer(format, outbox, owner, self._parts.clock(), had=seen, follows=follows)
        self.viewers.add(viewer, self.status)
        self._enqueue(_Greeting(viewer))
        return viewer

    def remove_viewer(self, viewer: Viewer) -> None:
        """Stop showing it to a viewer; once is enough."""
        if viewer not in self.viewers:
            return
        self.viewers.remove(viewer, self._parts.clock())
        self._parts.service.unwatch(self.session_id)
        self._encodings.retain(self.viewers.formats)

    def keep_unwatched(self) -> None:
        """Never count it as abandoned: a client waits for it that does not watch."""
        self._is_awaited = True

    def end_if_abandoned(self, now: float, *, abandon_s: float, leave_line_s: float) -> None:
        """End it where nobody has watched or recorded it for so long; in line that is borne with less long
        than with a place. What was kept of one that has not come to its place stays."""
        patience_s = leave_line_s if self.never_began else abandon_s
        used_at = max(self.viewers.left_at, self.recordings.fed_at)
        if self.viewers or self._is_awaited or now - used_at <= patience_s:
            return
        comes_back = self.request.start is not None
        if self.last_chunk is None and (self.never_began or comes_back):
            self.release_state()
        self.end(f"nobody watched it for {patience_s:g} s")

    def show_stats(self, stats: Stats) -> None:
        self.shared = stats.shared
        self.viewers.put_newest(stats)

    # What its owner asks for.

    async def control(
        self, control: AnyControl, *, at_chunk: int | None = None, by: object | None = None
    ) -> Receipt:
        """Steer it, once it is there. What is acknowledged is logged, where controls are. `by` is the
        connection with which keys that are held are released."""
        await self._read()
        arrived = self._parts.clock() if at_chunk is None else None
        match control:
            case SetImage():
                control = await self._with_picture(control)
            case SetActions(id=""):
                control = msgspec.structs.replace(control, id=ACTIONS_ID)
        receipt = self._parts.service.control(self.session_id, control, at_chunk=at_chunk)
        self.receipts.queued(receipt, arrived)
        if isinstance(control, SetActions):
            self.keys.queued(control, receipt, arrived, by)
            self._note_unknown_keys(control)
        await self._log_control(control, receipt)
        if isinstance(control, Pause) and self.keys.are_held:
            await self.control(RELEASED)
        return receipt

    async def release_keys(self, by: object) -> None:
        """Let go of the keys that a connection holds which is closed. Do nothing for a session that has ended
        meanwhile."""
        if self.keys.holder is by:
            with suppress(MillstreamError):
                await self.control(RELEASED)

    async def release_stale_keys(self) -> None:
        """Let go of keys that were held when the session was kept: their client has died with its server."""
        with suppress(MillstreamError):
            await self._read()
            timeline = self._parts.service.timeline(self.session_id)
            held = timeline is not None and (timeline.steering.keys or any(timeline.steering.axes))
            if held and not self.keys.are_held:
                await self.control(RELEASED)

    async def _read(self) -> None:
        """Wait until a kept session is read from storage. Raises where it has ended meanwhile."""
        give_up = self._parts.clock() + READ_S
        while self.is_being_read and self._parts.clock() < give_up:
            await asyncio.sleep(LOOK_S)
        self._refuse_when_ended()

    def _note_unknown_keys(self, control: SetActions) -> None:
        """Send a note, once a session, when a key means nothing to the model: it has no effect."""
        known = self._parts.keys or ()
        unknown = sorted({*control.keys, *control.tapped} - {*known})
        if unknown and not self._noted_keys:
            self._noted_keys = True
            words = f"{', '.join(unknown)} means nothing to this model; its keys are {', '.join(known)}"
            self.tell(Noted(words=words, once=True))

    async def _with_picture(self, control: SetImage) -> SetImage:
        """Return it with its file fitted to the stream. Raises what is wrong with the file."""
        if control.picture is not None:
            raise ControlError("picture is what a server makes of a file; send the file as image")
        control.check()
        fitted = await self._parts.fit(control.image, self.config, control.fit)
        self._refuse_when_ended()
        if fitted.note:
            self.tell(Noted(words=about_picture(fitted.note), once=True))
        return msgspec.structs.replace(control, image=b"", picture=fitted.picture)

    async def _log_control(self, control: AnyControl, receipt: Receipt) -> None:
        if self._parts.state_log is not None:
            with counted(self._before_next):
                await self._parts.state_log.log_control(self.session_id, control, receipt)

    def draft(self, control: SetPrompt | None) -> None:
        """Make ahead what its owner is typing; None: nothing any more."""
        self._refuse_when_ended()
        self._parts.service.draft(self.session_id, control)

    async def preview(self, prompts: Sequence[str], mode: Switch) -> FutureList:
        """Show what these prompts would make of it; without any, prompts near its own, others as the stream
        goes on."""
        turn = 0 if self.last_chunk is None else self.last_chunk.index
        prompts = prompts or near(self.prompts[-1].text, turn=turn)
        return await preview(self._parts.service, self._parts.pool, self.session_id, prompts, mode)

    def end(self, reason: str = "closed by its owner") -> None:
        """End it once its chunk is done; of one that has ended: nothing."""
        self._parts.service.end(self.session_id, reason)

    def push(self, frame_HW3: Frames) -> None:
        """Take the next frame of its input."""
        feed = self.request.feed
        assert feed is not None, f"{self.session_id} was opened without input"
        feed.push(frame_HW3)
        self._parts.service.fed(self.session_id)

    async def save(self) -> Kept:
        """Save it as it is between two chunks."""
        archive = self._parts.archive_of(self.key)
        save = partial(archive.save, self._parts.service, self.session_id, owner=self.client)
        kept = await within_quota(self.key, archive.store, save)
        self.snapshots.append(kept.name)
        return kept

    def start_recording(self, fps: float | None = None) -> str:
        """Return the name the recording will have; one under way goes on. With `fps` it plays at that rate,
        whatever is live."""
        if self.ended:
            raise ProtocolError("bad_state", "the session has ended; there is nothing left to record")
        return self.recordings.start(self.fps, fps)

    # Where it goes.

    def fork_at(self, chunk: int) -> None:
        """Note the first chunk in which it can differ from its parent."""
        self.lineage = replace(self.lineage, forked_at=chunk)

    @property
    def can_move(self) -> bool:
        """Return whether it is live and all who watch go along."""
        return (
            self.state.name == "live"
            and self.recordings.active is None
            and all(viewer.follows for viewer in self.viewers)
        )

    async def hand_over(self) -> None:
        """Stand still, and leave its state where another server finds it. Raises where it cannot be left;
        then it goes on."""
        assert self._parts.state_log is not None, "what is not kept cannot be handed over"
        self.handoff.prepare()
        try:
            if not await self.handoff.answered(ANSWERED_S) or self.recordings.active is not None:
                raise NotAllowed("it is being recorded, or makes what was asked of it")
            self._parts.service.hold(self.session_id)
            await self._parts.state_log.write_state(self.session_id)
        except MillstreamError:
            self.take_back()
            raise

    def take_back(self) -> None:
        """Go on here: no other server has it."""
        self.handoff.stay()
        self._parts.service.let_go_on(self.session_id)

    def give_up(self) -> None:
        """End here, for it goes on elsewhere, or is to; what is kept of it stays. Its viewers are not sent an
        end: they lose their connection, and ask the first address where it is."""
        self._move(lambda viewer: None)

    def move(self, moved: Callable[[Viewer], MovedMessage]) -> None:
        """End here and tell each viewer where it goes on."""
        self._move(moved)

    def _move(self, farewell: Farewell) -> None:
        self.handoff.move(farewell)
        self.release_state()
        self.end("it goes on elsewhere")

    def release_state(self) -> None:
        """Let what was kept of it stay when it ends."""
        if self._parts.state_log is not None:
            self._parts.state_log.release(self.session_id)

    def close(self) -> None:
        """Free what it held: it has ended, all that is kept of it is whole, and from now on it is only
        described."""
        self.state.become("closed")
        self._inbox.clear()
        self.request = replace(self.request, feed=None, journal=None, start=None)

    # What the engine says, passed on.

    async def run(self) -> None:
        """Pass on what is told until the session has ended."""
        try:
            while not self.ended:
                await self._pass_on(await self._inbox.next())
            for item in self._inbox:
                if isinstance(item, _BetweenChunks):
                    item.act()
        except Exception as error:  # an encoder that fails ends this session and no other
            log.exception("its pictures could not be encoded", extra={"session": label(self.session_id)})
            self.end(f"its pictures could not be encoded: {error}")
            self._finish(Ended(cause="failed", reason=f"its pictures could not be encoded: {error}"))

    def _receive(self, notice: Notice) -> None:
        if not isinstance(notice, Chunk):
            self._enqueue(notice)
            return
        reading = self._parts.read(notice.prompts)
        chunk = replace(notice, unknown=reading.unknown, understood=reading.understood)
        first_s = None if self.last_chunk is not None else self._parts.clock() - self.begun
        self.last_chunk = chunk.without_frames()
        self._parts.metrics.chunk(chunk, first_s=first_s)
        phases = {f"{phase}_ms": ms for phase, ms in chunk.timing.phases_ms.items()}
        tracing.record("chunk", self.session_id, chunk.timing.total_ms / 1000, index=chunk.index, **phases)
        asked_at, pressed = self._note_applied(chunk.receipts)
        for asked in asked_at:
            self._parts.metrics.control_seconds.observe(self._parts.clock() - asked)
        self.keys.expect(chunk.index, pressed)
        self._enqueue(chunk)

    def _note_applied(self, receipts: tuple[Receipt, ...]) -> tuple[list[float], float | None]:
        """Return when those that were to show at once were asked for, and when the oldest change of keys was,
        if there is one."""
        for receipt in receipts:
            level = (
                logging.DEBUG if self.keys.has_asked(receipt) else logging.INFO
            )  # keys apply at every chunk
            words = f"{receipt.state} {receipt.control_id[:LOGGED]!r}"
            self._log(words, level, chunk=receipt.chunk_index)
        return self.receipts.applied(receipts), self.keys.applied(receipts)

    def _enqueue(self, item: _Incoming) -> None:
        if self.ended and isinstance(item, _BetweenChunks):
            item.act()
        else:
            self._inbox.put(item)

    async def _pass_on(self, item: _Incoming) -> None:
        match item:
            case Chunk():
                await self._show(item)
            case _Greeting(viewer=viewer):
                await self._greet(viewer)
            case _BetweenChunks(act=act):
                act()
            case Ended():
                self._finish(item)
            case Waiting() | Live():
                self.state.update(item)
                self._log(type(item).__name__.lower())
                self.viewers.put(item)
            case Rated(note=note, fps=fps):
                self.state.update(Live(note=note, fps=fps))
                self._log(note)
                self.viewers.put(item)
            case Applied(receipts=receipts):
                self._note_applied(receipts)
                self.viewers.put(item)
            case Noted(words=words):
                self._log(words)
                self.viewers.note(item)

    async def _show(self, chunk: Chunk) -> None:
        """Encode a chunk once for each format in use and give it to all who watch."""
        if chunk.receipts:
            self.viewers.put(Applied(receipts=chunk.receipts))
        if len(chunk.frames):
            self.recordings.add(chunk.frames, chunk.fps)
        while self._latest and self._latest[-1].index >= chunk.index:
            self._latest.pop()  # of a path that was left
        self._latest.append(chunk)
        late_s = chunk.late_s
        words = f"chunk in {chunk.timing.total_ms:.0f} ms" + (f", {late_s:.2f} s late" if late_s > 0 else "")
        self._log(words, logging.INFO if late_s > 0 else logging.DEBUG, chunk=chunk.index)
        if self._before_next:
            await asyncio.wait(self._before_next)
        state_log = self._parts.state_log
        logged = (
            None
            if state_log is None
            else asyncio.ensure_future(state_log.log_shown(self.session_id, chunk.index))
        )
        formats = {viewer.format for viewer in self.viewers if viewer.wants(chunk)}
        pictures = await self._encodings.encode_all(formats, chunk)
        if logged is not None:  # meanwhile
            await logged
        self._parts.meter.passed_on(self._encodings.take_seconds())
        for picture in pictures:
            for viewer in self.viewers:
                if viewer.format == picture.format and viewer.wants(chunk):
                    viewer.give(picture, self._encodings.opening(picture.format))
        if (pressed := self.keys.shown(chunk.index)) is not None:
            self.key_ms = 1000 * (self._parts.clock() - pressed)
            self._parts.metrics.key_seconds.observe(self.key_ms / 1000)

    async def _greet(self, viewer: Viewer) -> None:
        """Give the last chunk again, so that a viewer who comes while nothing moves sees where things are.
        One who comes back has those that were on their way when the connection was lost, unless its encoder
        is at work for others."""
        has = max(viewer.had, viewer.seen)
        missing = [each for each in self._latest if len(each.frames) and each.index > has]
        shares = any(other.format == viewer.format for other in self.viewers if other is not viewer)
        for chunk in missing if viewer.had >= 0 and not shares else missing[-1:]:
            if viewer not in self.viewers:
                return
            picture = await self._encodings.encode(viewer.format, chunk)
            again = replace(picture, chunk=replace(picture.chunk, receipts=()))
            viewer.give(again, self._encodings.opening(viewer.format))

    def _log(self, words: str, level: int = logging.INFO, **about: object) -> None:
        whose = {"key": self.key.name} if self.key.name else {}
        log.log(level, words, extra={"session": label(self.session_id), **about, **whose})

    def _finish(self, ended: Ended) -> None:
        self.state.update(ended)
        self._log(f"ended: {ended.cause}, {ended.reason}")
        for viewer in self.viewers:
            said = self.handoff.last_words(viewer, ended)
            if said is not None:
                viewer.outbox.put(said)
            viewer.outbox.finish()
        self._latest.clear()
        self._encodings.retain(())

    def _refuse_when_ended(self) -> None:
        if self.ended:
            raise UnknownSession("the session has ended; start a new one")
