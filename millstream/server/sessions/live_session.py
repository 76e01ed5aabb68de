"""One session on the event loop's side: what the engine tells it goes to everybody who watches, in order.

The engine's thread hands notices over with `tell` and goes on. Here they wait in line for a task of its own, which
has each chunk encoded once for every format somebody watches in, in a pool of threads, and puts it into the viewers' outboxes.
When encoding falls behind, the oldest frames that wait are let go; everything else about their chunk still comes.
Knows no protocol: `server/protocol/conversation.py` and others turn what is in an outbox into messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from millstream.core import tracing
from millstream.core.client_messages import Format
from millstream.core.config import StreamConfig
from millstream.core.controls import AnyControl, Receipt, SetPrompt, WeightedPrompt
from millstream.core.errors import Overloaded, UnknownSession
from millstream.server.access.keys import NAMELESS, Key
from millstream.server.sessions.departure import Departure, counted
from millstream.server.sessions.encodings import ChunkEncodings, FreshChunk
from millstream.server.sessions.host_meter import HostMeter
from millstream.server.sessions.metrics import Metrics
from millstream.server.sessions.outbox import ChunkInfo, Outbox
from millstream.server.sessions.receipts import KnownReceipts
from millstream.server.sessions.viewers import Viewer, who_makes_room
from millstream.serving.notices import Applied, Ended, Live, Noted, Notice, Pictured, Rated, Waiting
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest, label
from millstream.video.encoding import Frames
from millstream.video.recording import Recording

log = logging.getLogger(__name__)

MAX_BACKLOG = 4
"""Chunks that may wait to be encoded with their frames."""
MAX_VIEWERS = 64
MAX_LISTED = 64
MAX_NOTES = 16
GIVEN_AGAIN = 3
"""Chunks at most, to who comes back."""
LOGGED = 40
"""Letters of a control's id."""


@dataclass(slots=True)
class _Greeting:
    """A new viewer that wants to see something now."""

    viewer: Viewer


@dataclass(frozen=True, slots=True)
class Tape:
    """A recording under way, and the name it will have."""

    name: str
    recording: Recording
    fps: float | None = None
    """What its frames play at; None: what they play at live."""


@dataclass(slots=True)
class LiveSessionParts:
    """What all live sessions use and none owns."""

    service: Service
    pool: Executor
    unknown_words: Callable[[str], list[str]]
    metrics: Metrics
    meter: HostMeter
    clock: Callable[[], float] = field(default=time.monotonic)


class LiveSession:
    def __init__(
        self, request: OpenRequest, view_id: str, parts: LiveSessionParts, *, client: str = "", key: Key = NAMELESS
    ) -> None:
        self.request = request
        self.session_id = request.session_id
        self.view_id = view_id
        self.client = client
        """Whose address opened it."""
        self.key = key
        """Whose session it is."""
        self.tree = request.tree or request.session_id
        """The first session of all that were forked from each other."""
        self.parent_id = ""
        """Of a branch, the session that it was forked from."""
        self.forked_at: int | None = None
        """The first chunk in which it can differ from that."""
        self.shared = 0
        """Chunks that it had from a session that began alike, a second ago."""
        self.state: Waiting | Live | Ended | None = None
        self.begun = self.left_at = parts.clock()
        """`left_at`: since when nobody watches."""
        self.last_info: ChunkInfo | None = None
        self.viewers: set[Viewer] = set()
        self.tape: Tape | None = None
        self.held = False
        """Whether somebody waits for it who does not watch: then it is not abandoned."""
        self.settled = False
        """Whether it has ended and all that is kept of it is whole."""
        self.recordings: deque[str] = deque(maxlen=MAX_LISTED)
        self.snapshots: deque[str] = deque(maxlen=MAX_LISTED)
        """Names of what was kept of it, the newest last; the oldest are forgotten here first."""
        self.journal_name = ""
        """Of what is written of it; empty where nothing is."""
        self.notes: deque[Noted] = deque(maxlen=MAX_NOTES)
        """What its people should know, also those who come later."""
        self._parts = parts
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Notice | FreshChunk | _Greeting] = deque()
        self._more = asyncio.Event()
        self._latest: deque[FreshChunk] = deque(maxlen=GIVEN_AGAIN)
        self._encodings = ChunkEncodings(parts.pool)
        self.receipts = KnownReceipts()
        self._words: tuple[tuple[WeightedPrompt, ...], tuple[str, ...]] = ((), ())
        self._logging: set[asyncio.Future[None]] = set()
        """What has to be kept before the next chunk is shown."""
        self.departure = Departure()

    def tell(self, notice: Notice) -> None:
        """Called on the engine's thread: hands over and returns."""
        self._loop.call_soon_threadsafe(self._hear, notice)

    @property
    def ended(self) -> bool:
        return isinstance(self.state, Ended)

    @property
    def never_began(self) -> bool:
        """Whether it has stood in line ever since it was opened."""
        return isinstance(self.state, Waiting) and self.last_info is None

    @property
    def fps(self) -> float:
        """What it plays at for now."""
        return self.state.fps if isinstance(self.state, Live) else self.request.config.fps

    @property
    def paused(self) -> bool:
        timeline = self._parts.service.timeline(self.session_id)
        return timeline is not None and timeline.paused

    @property
    def config(self) -> StreamConfig:
        """As its controls have made it."""
        timeline = self._parts.service.timeline(self.session_id)
        return self.request.config if timeline is None else timeline.over(self.request.config)

    def config_now(self) -> dict[str, Any]:
        """What it is by now, as the answers of every protocol have it."""
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
        """Of the last chunk that came, or as it was opened with."""
        return self.request.prompts if self.last_info is None else self.last_info.prompts

    def join(self, format: Format, outbox: Outbox, *, owner: bool = False, follows: bool = False, seen: int = -1) -> Viewer:
        """Watch: how things stand comes at once, then the last chunk, then all that follow, but for those it has `seen`. An
        owner is always let in."""
        self._refuse_when_ended()
        if len(self.viewers) >= MAX_VIEWERS and not owner:
            raise Overloaded(f"{MAX_VIEWERS} watch this session already; try again later")
        self._parts.service.watch(self.session_id)
        while len(self.viewers) >= MAX_VIEWERS:
            self._send_one_away()
        viewer = Viewer(format, outbox, owner, self._parts.clock(), had=seen, follows=follows)
        self.viewers.add(viewer)
        if self.state is not None:
            outbox.put(self.state)
        for note in self.notes:
            if owner or not note.once:
                outbox.put(note)
        if owner:
            self._forget_told()
        self._enqueue(_Greeting(viewer))
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Watch no longer; once is enough."""
        if viewer not in self.viewers:
            return
        self.viewers.remove(viewer)
        self._parts.service.unwatch(self.session_id)
        self.left_at = self._parts.clock()
        self._encodings.keep({other.format for other in self.viewers})

    def _send_one_away(self) -> None:
        goes = who_makes_room(self.viewers)
        goes.outbox.put(Ended(cause="refused", reason="its owner came back and needed the place; try again later"))
        goes.outbox.finish()
        self.leave(goes)

    def control(self, control: AnyControl, *, at_chunk: int | None = None) -> Receipt:
        self._refuse_when_ended()
        control.check()  # a session of one's own shows something calm for an empty prompt; who sends one is told
        receipt = self._parts.service.control(self.session_id, control, at_chunk=at_chunk)
        self.receipts.queued(receipt, self._parts.clock() if at_chunk is None else None)
        return receipt

    @property
    def can_move(self) -> bool:
        """Whether it runs, and everybody who watches goes along."""
        stays = self.departure.is_open or self.tape is not None or not isinstance(self.state, Live)
        return not stays and all(viewer.follows for viewer in self.viewers)

    @contextmanager
    def before_next(self) -> Iterator[None]:
        """What is done here is done before its next chunk is shown."""
        with counted(self._logging):
            yield

    def draft(self, control: SetPrompt | None) -> None:
        """What its owner is typing; None: nothing any more."""
        self._refuse_when_ended()
        self._parts.service.draft(self.session_id, control)

    @property
    def backlog(self) -> int:
        """What waits to be encoded and passed on."""
        return len(self._inbox)

    def push(self, frame_HW3: Frames) -> None:
        """The next frame of its input."""
        feed = self.request.feed
        assert feed is not None, f"{self.session_id} was opened without input"
        feed.push(frame_HW3)
        self._parts.service.fed(self.session_id)

    def let_go(self) -> None:
        """It has ended, and what is left is what can be told of it."""
        self.settled = True
        self._inbox.clear()
        self.request = replace(self.request, feed=None, journal=None, start=None)

    async def run(self) -> None:
        """Pass on what is told until the session has ended."""
        try:
            while not self.ended:
                await self._pass_on(await self._next())
        except Exception as error:  # an encoder that fails ends this session and no other
            log.exception("its pictures could not be encoded", extra={"session": label(self.session_id)})
            self._parts.service.end(self.session_id, f"its pictures could not be encoded: {error}")
            self._finish(Ended(cause="failed", reason=f"its pictures could not be encoded: {error}"))

    def _hear(self, notice: Notice) -> None:
        if not isinstance(notice, Pictured):
            self._enqueue(notice)
            return
        fresh = FreshChunk.of(notice, self._unknown(notice.chunk.prompts))
        first_s = None if self.last_info is not None else self._parts.clock() - self.begun
        self.last_info = fresh.info
        self._parts.metrics.chunk(fresh.info, first_s=first_s)
        phases = {f"{phase}_ms": ms for phase, ms in fresh.info.phases_ms.items()}
        tracing.record("chunk", self.session_id, fresh.info.total_ms / 1000, index=fresh.info.index, **phases)
        for asked in self._note_applied(fresh.info.receipts):
            self._parts.metrics.control_seconds.observe(self._parts.clock() - asked)
        self._enqueue(fresh)

    def _note_applied(self, receipts: tuple[Receipt, ...]) -> list[float]:
        """When those that were to show at once were asked for."""
        for receipt in receipts:
            self._log(f"{receipt.state} {receipt.control_id[:LOGGED]!r}", chunk=receipt.chunk_index)
        return self.receipts.applied(receipts)

    def _enqueue(self, item: Notice | FreshChunk | _Greeting) -> None:
        self._inbox.append(item)
        waiting = [each for each in self._inbox if isinstance(each, FreshChunk) and each.frames is not None]
        assert len(waiting) <= MAX_BACKLOG + 1, f"{len(waiting)} chunks wait with their frames"
        if len(waiting) > MAX_BACKLOG:
            waiting[0].frames = None
        self._more.set()

    async def _next(self) -> Notice | FreshChunk | _Greeting:
        while not self._inbox:
            self._more.clear()
            await self._more.wait()
        return self._inbox.popleft()

    async def _pass_on(self, item: Notice | FreshChunk | _Greeting) -> None:
        match item:
            case FreshChunk():
                await self._show(item)
            case _Greeting(viewer=viewer):
                await self._greet(viewer)
            case Ended():
                self._finish(item)
            case Waiting() | Live():
                self.state = item
                self._log(type(item).__name__.lower())
                self.put(item)
            case Rated(note=note, fps=fps):
                self.state = Live(note=note, fps=fps)
                self._log(note)
                self.put(item)
            case Applied(receipts=receipts):
                self._note_applied(receipts)
                self.put(item)
            case Noted(words=words):
                self.notes.append(item)
                self._log(words)
                self.put(item)
                if any(viewer.owner for viewer in self.viewers):
                    self._forget_told()

    def _forget_told(self) -> None:
        self.notes = deque((note for note in self.notes if not note.once), maxlen=MAX_NOTES)

    def put(self, item: object) -> None:
        """To everybody who watches."""
        for viewer in self.viewers:
            viewer.outbox.put(item)

    async def _show(self, fresh: FreshChunk) -> None:
        """Encode a chunk once for each format in use and give it to everybody."""
        if fresh.info.receipts:
            self.put(Applied(receipts=fresh.info.receipts))
        if self.tape is not None and fresh.frames is not None:
            self.tape.recording.add(fresh.frames, self.tape.fps or fresh.info.fps)
        while self._latest and self._latest[-1].info.index >= fresh.info.index:
            self._latest.pop()  # of a path that was left
        self._latest.append(fresh)
        late_s = fresh.info.late_s
        words = f"chunk in {fresh.info.total_ms:.0f} ms" + (f", {late_s:.2f} s late" if late_s > 0 else "")
        self._log(words, logging.INFO if late_s > 0 else logging.DEBUG, chunk=fresh.info.index)
        if self._logging:
            await asyncio.wait(self._logging)
        formats = {viewer.format for viewer in self.viewers if viewer.wants(fresh.info)}
        pictures = await self._encodings.encode_all(formats, fresh)
        self._parts.meter.passed_on(self._encodings.take_seconds())
        for picture in pictures:
            for viewer in self.viewers:
                if viewer.format == picture.format and viewer.wants(fresh.info):
                    viewer.give(picture, self._encodings.opening(picture.format))

    async def _greet(self, viewer: Viewer) -> None:
        """The last chunk again, so that somebody who comes while nothing moves sees where things are. Who comes back has those
        that were on their way when the connection was lost, unless its encoder is at work for others."""
        has = max(viewer.had, viewer.seen)
        missing = [each for each in self._latest if each.frames is not None and each.info.index > has]
        shares = any(other.format == viewer.format for other in self.viewers if other is not viewer)
        for chunk in missing if viewer.had >= 0 and not shares else missing[-1:]:
            if viewer not in self.viewers:
                return
            picture = await self._encodings.encode(viewer.format, chunk)
            again = replace(picture, info=replace(picture.info, receipts=()))
            viewer.give(again, self._encodings.opening(viewer.format))

    def _log(self, words: str, level: int = logging.INFO, **about: object) -> None:
        whose = {"key": self.key.name} if self.key.name else {}
        log.log(level, words, extra={"session": label(self.session_id), **about, **whose})

    def _finish(self, ended: Ended) -> None:
        self.state = ended
        self._log(f"ended: {ended.cause}, {ended.reason}")
        for viewer in self.viewers:
            said = self.departure.last_words(viewer, ended)
            if said is not None:
                viewer.outbox.put(said)
            viewer.outbox.finish()
        self._latest.clear()
        self._encodings.keep(())

    def _unknown(self, prompts: tuple[WeightedPrompt, ...]) -> tuple[str, ...]:
        """Words that mean nothing to the model; looked up once for each mix."""
        if self._words[0] != prompts:
            words = (word for prompt in prompts for word in self._parts.unknown_words(prompt.text))
            self._words = (prompts, tuple(dict.fromkeys(words)))
        return self._words[1]

    def _refuse_when_ended(self) -> None:
        if self.ended:
            raise UnknownSession("the session has ended; start a new one")
