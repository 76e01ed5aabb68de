"""One envelope describes one chunk of work completely; one result answers it.

The metadata only: tensors travel beside it (`wire/parcel.py`). What is not written here does not happen.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Literal

import msgspec

from millstream.core.conditions import BeginFrom, FrameConditions
from millstream.core.config import (
    SPATIAL_STRIDE,
    Positions,
    Sampler,
    check_share,
    check_size,
    check_steps,
    check_window,
    pixel_frames,
)
from millstream.core.controls import WeightedPrompt
from millstream.core.errors import ConfigError, EnvelopeRefused, MillstreamError

VERSION = 1
MAX_KINDS = 256
"""Kinds of chunks that are remembered to be sound."""

Action = Literal["NOOP", "INFER", "FLUSH", "RELEASE", "FORK", "OFFLOAD", "RESTORE", "CHECK", "SHUTDOWN"]
"""Keep-alive, a chunk, end a session's chunks under way, forget a session, copy it, hold it in host memory,
bring it back, compare ranks, leave. Only INFER has tensors and a result."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """PPEnvelopeV1 without its tensors. Unknown fields are ignored, unknown versions refused."""

    version: int = VERSION
    action: Action = "INFER"
    call_id: int
    """Strictly increasing over all actions of one front."""
    session_id: str
    chunk_index: int
    """Counts the session's chunks, across cuts."""
    cache_epoch: int
    """Counts hard cuts; -1 marks warm-up."""
    height: int
    width: int
    stride: int = SPATIAL_STRIDE
    """Pixels per latent cell along each side."""
    start_frame: int
    """Number of this chunk's first latent frame within the epoch."""
    frames: int
    init_cache: bool
    """Allocate the caches anew, for the window below."""
    reset_kv: bool
    reset_cross: bool
    recompute: bool
    context_indices: tuple[int, ...] = ()
    """Which frames of the epoch `context_frames` holds, oldest first; empty unless `recompute`."""
    steps: tuple[float, ...]
    """Noise levels as the model sees them, 0 to 1000, high to low."""
    sampler: Sampler = "renoise"
    """Way of its latents from one level to the next."""
    commit: bool
    context_noise: float
    expected_calls: int
    window: int
    sink: int
    positions: Positions
    seed: int
    noise_scale: float
    """Share of noise in `latents_in`: 1 for text to video."""
    kv_bias: float
    prompts: tuple[WeightedPrompt, ...]
    read: tuple[str, ...] = ()
    """Texts of the prompts in the model's own words, where those are other than what was written. A prompt is
    encoded by these alone, so a chunk that is made again does not depend on what is known by then."""
    conditioning_id: str
    """Names the conditioning tensor, which travels only when the other side does not hold it yet."""
    conditions: tuple[FrameConditions, ...] = ()
    """Conditions of each of its frames; empty where the model takes none."""
    context_conditions: tuple[FrameConditions, ...] = ()
    """Conditions of each frame of `context_indices`; empty where the model takes none."""
    begin_from: BeginFrom | None = None
    """Picture that the epoch begins with: its latents come with this chunk."""
    given_frames: int = 0
    """Leading frames of this chunk that are given clean and stay at level 0, where a model begins from a
    picture within its first chunk."""
    towards: str = ""
    """Digest of a picture that its latents begin from, as those of an input video; empty where there is none."""
    under_way: int = 1
    """Chunks of its session that are under way at a time, at staggered noise levels: above 1, its result
    comes when later ones have begun, or with a FLUSH."""
    fork_id: str = ""
    """Name that the copy gets, in a FORK."""

    @property
    def latent_size(self) -> tuple[int, int]:
        return self.height // self.stride, self.width // self.stride

    @property
    def end_frame(self) -> int:
        return self.start_frame + self.frames

    @property
    def prompts_as_read(self) -> tuple[WeightedPrompt, ...]:
        if not self.read:
            return self.prompts
        if len(self.read) != len(self.prompts):
            raise EnvelopeRefused(
                f"chunk {self.chunk_index} of {self.session_id} has {len(self.prompts)} prompts and "
                f"{len(self.read)} readings"
            )
        return tuple(
            msgspec.structs.replace(prompt, text=text)
            for prompt, text in zip(self.prompts, self.read, strict=True)
        )

    @property
    def begins_before(self) -> bool:
        """True if the frames before it are those of a picture and come with it, to be shown first."""
        return self.begin_from is not None and not self.given_frames

    @property
    def starts_epoch(self) -> bool:
        """True if nothing of its epoch was made before it."""
        return self.start_frame == 0 or self.begins_before

    @property
    def shown_from(self) -> int:
        """Number of the first latent frame that is shown with it."""
        return 0 if self.begins_before else self.start_frame

    @property
    def num_shown(self) -> int:
        """Pixel frames that are shown with it."""
        return pixel_frames(self.shown_from, self.end_frame - self.shown_from)

    def context_groups(self) -> Iterator[slice]:
        """Yield which context frames are rebuilt together, oldest first: those of one chunk. Where an epoch began
        with frames that fill no chunk, chunks end with the window and not with every so many frames."""
        count = len(self.context_indices)
        first = count % self.frames if self.start_frame % self.frames else 0
        if first:
            yield slice(0, first)
        for start in range(first, count, self.frames):
            yield slice(start, min(start + self.frames, count))

    @property
    def what_it_says(self) -> Envelope:
        """All that its chunk's bits depend on: equal ones from one past give equal bits."""
        return msgspec.structs.replace(self, session_id="", call_id=0)

    def validate(self) -> None:
        """Refuse before anything is committed. Says nothing about tensors."""
        if self.version != VERSION:
            raise EnvelopeRefused(
                f"envelope version {self.version} is not spoken here; this side speaks {VERSION}"
            )
        if self.action != "INFER":
            return
        try:
            _check_kind(
                self.height,
                self.width,
                self.stride,
                self.steps,
                self.window,
                self.sink,
                self.frames,
                self.under_way,
            )
            check_share("noise_scale", self.noise_scale)
            check_share("kv_bias", self.kv_bias)
        except MillstreamError as error:
            raise EnvelopeRefused(f"chunk {self.chunk_index} of {self.session_id}: {error}") from None
        self._check_recompute()
        self._check_conditions()
        self._check_begin()
        calls = recompute_calls(len(self.context_indices), self.frames) + len(self.steps) + self.commit
        if self.expected_calls != calls:
            raise EnvelopeRefused(
                f"chunk {self.chunk_index} of {self.session_id} expects {self.expected_calls} model calls, "
                f"its plan has {calls}"
            )

    def _check_recompute(self) -> None:
        indices = self.context_indices
        if self.recompute != bool(indices):
            raise EnvelopeRefused(
                f"chunk {self.chunk_index} of {self.session_id}: recompute and context must come together"
            )
        if any(later <= earlier for earlier, later in itertools.pairwise(indices)):
            raise EnvelopeRefused(f"context frames must be in order, got {indices}")
        if indices and (indices[-1] >= self.start_frame or len(indices) > self.window - self.frames):
            raise EnvelopeRefused(
                f"context {indices} does not fit before frame {self.start_frame} in window {self.window}"
            )

    def _check_conditions(self) -> None:
        who = f"chunk {self.chunk_index} of {self.session_id}"
        if len(self.conditions) not in (0, self.frames):
            raise EnvelopeRefused(f"{who} has {self.frames} frames and conditions of {len(self.conditions)}")
        if len(self.context_conditions) not in (0, len(self.context_indices)):
            raise EnvelopeRefused(
                f"{who} has {len(self.context_indices)} context frames and conditions of "
                f"{len(self.context_conditions)}"
            )
        if not 0 <= self.given_frames <= self.frames:
            raise EnvelopeRefused(f"{who} has {self.frames} frames, of which {self.given_frames} are given")

    def _check_begin(self) -> None:
        begin = self.begin_from
        who = f"chunk {self.chunk_index} of {self.session_id}"
        if begin is None:
            return
        given = (begin.frames, 0) if self.given_frames else (0, begin.frames)
        if begin.frames < 1 or (self.given_frames, self.start_frame) != given:
            raise EnvelopeRefused(
                f"{who} begins from {begin.frames} frames, starts at {self.start_frame} and has "
                f"{self.given_frames} given ones"
            )
        if not self.given_frames and self.context_indices != tuple(range(begin.frames)):
            raise EnvelopeRefused(f"{who} begins from {begin.frames} frames, not {self.context_indices}")


def instruction(action: Action, call_id: int, session_id: str = "", *, fork_id: str = "") -> Envelope:
    """An envelope that asks for no chunk: its other fields say nothing."""
    assert action != "INFER", "a chunk has more to say"
    return Envelope(
        action=action,
        call_id=call_id,
        session_id=session_id,
        chunk_index=-1,
        cache_epoch=-1,
        height=0,
        width=0,
        start_frame=0,
        frames=0,
        init_cache=False,
        reset_kv=False,
        reset_cross=False,
        recompute=False,
        steps=(),
        commit=False,
        context_noise=0.0,
        expected_calls=0,
        window=0,
        sink=0,
        positions="absolute",
        seed=0,
        noise_scale=1.0,
        kv_bias=1.0,
        prompts=(),
        conditioning_id="",
        fork_id=fork_id,
    )


def check_under_way(chunks: int, *, window: int, sink: int, frames: int) -> None:
    """Raise if so many chunks of so many frames cannot be under way in such a window."""
    if chunks < 1:
        raise ConfigError(f"a stream batch has a depth of 1 or more, got {chunks}")
    if window - sink < chunks * frames:
        raise ConfigError(
            f"{chunks} chunks of {frames} frames under way need a window of {chunks * frames} beside the "
            "sink, "
            f"got {window - sink}; choose a longer window or a smaller depth"
        )


@functools.lru_cache(maxsize=MAX_KINDS)
def _check_kind(
    height: int,
    width: int,
    stride: int,
    steps: tuple[float, ...],
    window: int,
    sink: int,
    frames: int,
    under_way: int,
) -> None:
    """Check what all chunks of a session have in common; cached, so that it is not checked again for each."""
    check_size(height, width, stride)
    check_steps(steps)
    check_window(window, sink, frames)
    check_under_way(under_way, window=window, sink=sink, frames=frames)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """PPResultV1 without its tensor: exactly one per INFER, errors included."""

    version: int = VERSION
    call_id: int
    session_id: str
    chunk_index: int
    cache_epoch: int
    ok: bool
    error: str = ""
    observed_calls: int = 0
    end_frame: int = 0
    stage1_ms: float = 0.0
    mesh_idle_ms: float = 0.0
    digest: str = ""


def rebuilding(
    envelope: Envelope,
    context_indices: tuple[int, ...],
    context_conditions: tuple[FrameConditions, ...] = (),
) -> Envelope:
    """Return the envelope for a generator that has no state of the session: prompt and window are sent
    along."""
    return msgspec.structs.replace(
        envelope,
        init_cache=True,
        reset_kv=True,
        reset_cross=True,
        recompute=bool(context_indices),
        context_indices=context_indices,
        context_conditions=context_conditions,
        expected_calls=recompute_calls(len(context_indices), envelope.frames)
        + len(envelope.steps)
        + envelope.commit,
    )


def recompute_calls(num_context_frames: int, frames_per_chunk: int) -> int:
    """The window is rebuilt chunk by chunk, oldest first."""
    assert frames_per_chunk > 0, f"a chunk has 1 frame or more, got {frames_per_chunk}"
    return -(-num_context_frames // frames_per_chunk)
