"""A session as it is asked for and as the session table has it: plain data for `serving/service.py`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from millstream.core.conditions import Picture
from millstream.core.config import ModelSpec, StreamConfig, pixel_frames
from millstream.core.controls import SetPrompt, WeightedPrompt
from millstream.engine.engine import Engine
from millstream.generation.generator import envelope_batch_key
from millstream.serving.admission_types import Request
from millstream.serving.chunk_times import Geometry
from millstream.serving.notices import Ended, Tell
from millstream.serving.session_life import SessionLife
from millstream.serving.turns import Terms
from millstream.session.chunk import NO_COMMIT, CommitCost, PendingChunk
from millstream.session.feed import LiveFeed
from millstream.session.pacing import Pace, RateKind
from millstream.session.ports import ChunkLog
from millstream.session.session import Session
from millstream.session.timeline import Timeline, shaped_by

LABEL_LENGTH = 8


class ViewerPosition(NamedTuple):
    """Media of a session that a viewer who comes back already has."""

    chunk: int = -1
    """Index of the last chunk."""
    dry_at: float = 0.0
    """Time when all of it is played, by `time.monotonic`."""


NOTHING = ViewerPosition()


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRequest:
    """A session as it is asked for."""

    session_id: str
    prompts: tuple[WeightedPrompt, ...]
    config: StreamConfig
    rate: RateKind = "asked"
    """Kind of frame rate: chosen here, up to that of its config; asked for, lowered if need be; or strictly
    as asked."""
    weight: float = 1.0
    lead_s: float | None = None
    unattended: Literal["run", "pause"] = "pause"
    idle_s: float = 60.0
    may_wait: bool = True
    max_life_s: float | None = None
    max_chunks: int | None = None
    owner: str = ""
    """Owner of the session: it shares what it holds with no other owner's sessions."""
    tree: str = ""
    """Name of the first session that a branch was forked from."""
    yields: bool = False
    """True if it comes back after its server's death, to where there may be no room for its rate."""
    feed: LiveFeed | None = None
    source: str = ""
    """Source of the feed's frames, where that is not its owner."""
    picture: Picture | None = None
    """Picture that it begins from."""
    journal: ChunkLog | None = None
    start: Callable[[], Callable[[Engine], Session]] | None = None
    """Loader of a saved session: reads it, on a thread of its own, once it has its place; what it returns
    then makes the session, on the engine's thread."""
    media_s: float = 0.0
    """Seconds of media that had been shown of a saved session."""
    has: ViewerPosition = NOTHING
    """Media that the viewer of a saved session already has."""

    @property
    def pace(self) -> Pace:
        return Pace(
            fps=self.config.fps,
            chunk_frames=pixel_frames(1, self.config.frames_per_chunk),
            lead_s=self.lead_s,
        )

    @property
    def takes_frames(self) -> bool:
        """True if its owner sends frames."""
        return self.feed is not None and not self.source

    @property
    def has_slack(self) -> bool:
        """True if it may be further ahead where chunk times vary: it is not strict and no lead was asked
        for."""
        return self.lead_s is None and self.rate != "strict"

    def lead_at(self, fps: float) -> float:
        """Return how many seconds it may get ahead of its viewer at this rate."""
        pace = self.pace.at(fps)
        return pace.max_ahead_s + (pace.media_s if self.has_slack else 0.0)

    def check_terms(self) -> None:
        """Raise what is wrong with its terms."""
        _ = self.terms

    @property
    def terms(self) -> Terms:
        return Terms(
            pace=self.pace,
            weight=self.weight,
            unattended=self.unattended,
            idle_s=self.idle_s,
            max_life_s=self.max_life_s,
            max_chunks=self.max_chunks,
        )


class PendingDraft(NamedTuple):
    """A control that is being typed."""

    control: SetPrompt
    until: float
    """Time when it is forgotten, by `time.monotonic`."""


@dataclass(slots=True)
class SessionEntry:
    """One session, from the moment it asked to the moment it ends."""

    request: OpenRequest
    asked: Request
    config: StreamConfig
    """As its controls have made it, and as admission knows it."""
    tell: Tell
    life: SessionLife
    """Moved by admission alone."""
    fps: float
    """Frames a second it plays at for now."""
    fps_since: float
    session: Session | None = None
    """None until it is let in."""
    viewers: int = 0
    closing: Ended | None = None
    """Set when it is to end as soon as its turn is over."""
    media_s: float = 0.0
    has: ViewerPosition = NOTHING
    """Chunks that its viewer has are made as fast as can be."""
    commit_cost: CommitCost = NO_COMMIT
    one_offs: int = 0
    """Engine's `one_offs` when its last turn began."""
    draft: PendingDraft | None = None
    """Control that its owner is about to ask for."""
    shared: int = 0
    """Chunks that it had from a session that began alike."""
    told_position: int = 0
    """Position in line that was last sent to its owner; 0 when it is in none."""

    @property
    def session_id(self) -> str:
        return self.request.session_id

    @property
    def label(self) -> str:
        return label(self.session_id)

    @property
    def paused(self) -> bool:
        """True if its owner has paused it."""
        return self.session is not None and self.session.timeline.paused


def label(session_id: str) -> str:
    """A session's name in logs: too short to steer it with."""
    return session_id[:LABEL_LENGTH]


def geometry(spec: ModelSpec, config: StreamConfig, timeline: Timeline | None = None) -> Geometry:
    """Return the geometry of a chunk: as configured, or as a session's controls have made it."""
    if timeline is not None:
        config = shaped_by(config, timeline)
    return Geometry.of(spec, config)


def batch_key(config: StreamConfig, timeline: Timeline) -> Hashable:
    """Return the batch key: sessions of equal key will most likely plan chunks of one kind. None while a
    window fills: that is soon over, and the time of shared calls is learnt from full ones."""
    if timeline.start_frame + config.frames_per_chunk < timeline.window:
        return None
    path = timeline.next_steps, config.sampler
    return config.latent_size, config.frames_per_chunk, path, timeline.window, config.anchor


def of_one_kind(chunks: Sequence[PendingChunk]) -> list[list[PendingChunk]]:
    """Group chunks that can share their model calls."""
    groups: dict[Hashable, list[PendingChunk]] = {}
    for chunk in chunks:
        groups.setdefault(envelope_batch_key(chunk.envelope), []).append(chunk)
    return list(groups.values())
