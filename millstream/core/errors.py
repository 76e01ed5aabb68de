"""Errors that are shown to users. Each message is one line that names the fix.

Invariants are asserts, not these. The command line prints a `MillstreamError` without a traceback.
"""

from collections.abc import Mapping, Sequence
from typing import Any


class MillstreamError(Exception):
    """Base of every error that a person can do something about."""


class ConfigError(MillstreamError):
    """A setting that cannot work, alone or together with another."""


class UnknownModel(MillstreamError):
    """A model name that is not registered."""


class WeightsError(MillstreamError):
    """Weights that are missing, unreadable, damaged or of another shape."""


class PromptError(MillstreamError):
    """A prompt that is empty or too long."""


class ControlError(MillstreamError):
    """A control that cannot be queued: malformed, in the past, or one too many."""


class EnvelopeRefused(MillstreamError):
    """An envelope that contradicts itself or the state it is meant for."""


class JournalError(MillstreamError):
    """A journal that cannot be read or does not fit what it is replayed on."""


class SnapshotError(MillstreamError):
    """A saved session that cannot be read, or not be gone on with here."""


class VideoError(MillstreamError):
    """An input video that cannot be read, or an output that cannot be written."""


class DeviceError(MillstreamError):
    """Hardware that is not there or too small for what was asked."""


class Overloaded(MillstreamError):
    """A session, or a change of one, that would break what was promised to others."""

    def __init__(
        self, message: str, *, fps: float | None = None, can_wait: bool = False, never: bool = False
    ) -> None:
        """`fps` is a frame rate at which it would be let in; `can_wait`, whether there is room in line;
        `never`, whether an idle device could not take it either."""
        super().__init__(message)
        self.fps = fps
        self.can_wait = can_wait
        self.never = never


class PoolFull(MillstreamError):
    """A branch whose keys and values may come to need more memory than there is."""


class NotAllowed(MillstreamError):
    """Something that is not for whoever asked."""


class ChunkCut(MillstreamError):
    """A chunk that was not let finish; its session cannot go on."""


class EngineFailed(MillstreamError):
    """The thread that owns the model has ended, and with it everything that was served."""


class NotKept(MillstreamError):
    """Something that was to be kept and could not be written: the disk is full, or fails."""


class UnknownFile(MillstreamError):
    """A recording, journal or snapshot that is not there, or not any more."""


class UnknownSession(MillstreamError):
    """A session that is not there, or not any more."""


class ProtocolBroken(MillstreamError):
    """A server that does not answer, goes away, or says what the protocol does not know."""


class ClientError(MillstreamError):
    """Refusal or end by a server, in its own words, or a server that cannot be reached."""

    def __init__(self, message: str, *, code: str = "", offer: dict[str, Any] | None = None) -> None:
        """`code` is of docs/protocol.md, empty where no server said it; `offer`, what it would accept
        instead."""
        super().__init__(message)
        self.code = code
        self.offer = offer


class LoadError(MillstreamError):
    """A load run that could not be carried out."""


class CollectiveRefused(MillstreamError):
    """A collective on the wrong group or in the wrong place; said before any rank waits for it."""


class WireError(MillstreamError):
    """A message that cannot be sent, or cannot be believed."""


class MeshError(MillstreamError):
    """Ranks that cannot work together: they differ, do not answer, or cannot be started."""


class MeshLost(MeshError):
    """A mesh that worked, or was about to, and does not any more. What it held can be built again from what
    the front holds."""

    def __init__(self, reason: str, *, from_outside: bool = False, calls: Sequence[str] = ()) -> None:
        """`from_outside`: a rank was killed or stopped, which says little about the chunk that it was at work
        on. `calls`: the collectives that ranks part ways at or wait in."""
        super().__init__(reason)
        self.from_outside = from_outside
        self.in_full = "; ".join([reason, *calls])
        """For who runs the mesh; the reason alone is for those who watch."""


class MeshGivenUp(MeshError):
    """A mesh that cannot be brought back: no session can go on."""


class TraceError(MillstreamError):
    """A trace that is not one, is cut off, or cannot be compared."""


class CompileRefused(MillstreamError):
    """A model that compiled with graph breaks, differently on different ranks, or after warm-up."""


class RewardFailed(MillstreamError):
    """A reward that gave no number for too many clips in a row."""


class UnusedParameters(MillstreamError):
    """Parameters that are to learn and that a loss does not reach."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"no gradient reached {', '.join(names)}: use them in the loss or freeze them")


class CourseError(MillstreamError):
    """Something in the course that its reader can mend."""


class RankRaised(CourseError):
    """A rank of a script that raised or ended; the others were stopped."""

    def __init__(self, rank: int, problem: str, trace: str = "") -> None:
        super().__init__(f"rank {rank} failed: {problem}")
        self.rank = rank
        self.problem = problem
        self.trace = trace


class RanksStuck(CourseError):
    """Ranks that wait for each other."""

    def __init__(self, timeout_s: float, waiting: Mapping[int, str]) -> None:
        """`waiting`: the line that each of them is at."""
        places = "; ".join(f"rank {rank} waits at {where}" for rank, where in sorted(waiting.items()))
        super().__init__(f"not done after {timeout_s:g} s: {places}")
        self.waiting = dict(waiting)
