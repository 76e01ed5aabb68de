"""Learning from one's own stream: distribution matching where the student continues what it painted itself.

The rollout runs on the ring, in the precision of serving and
without gradients; one step of its last chunks is then computed again with gradients in a single pass, its context being
the stream as it came out. So gradients reach one step back and never through the cache.

A rollout begins a stream, goes on with one, or goes on under another prompt, as a session recomputes. A beginning and a
switch are judged chunk by chunk, each given the clean ones before it. A stream that goes on is judged by a whole window
at once, with nothing given: a teacher that is shown a faded past continues it faded, one that is shown only the
picture asks for what the prompt says. That is what keeps a stream from drifting. Beginnings may be judged so too, a share
of them: chunk by chunk, a thing that began wrong or moves the wrong way is continued as it is.
Shapes: B batch, F frames, C latent channels, Y and X latent rows and columns, S text tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from millstream.core.config import DiTConfig
from millstream.models.dit import CausalDiT, CrossKV
from millstream.models.fast.follow import plain_weights
from millstream.models.kv import Memory
from millstream.models.sampler import FlowModel
from millstream.ops.precision import working_dtype
from millstream.trainer.methods.flow import TextAndDiT
from millstream.trainer.methods.matching import Matching, Painted, StreamView
from millstream.trainer.options import SelfForcingOptions
from millstream.trainer.pool import LatentPool
from millstream.trainer.reservoir import Reservoir
from millstream.trainer.rollout import as_served, continued, drawn_from, ring_for
from millstream.trainer.sequence import ChunkedSequence, Layout, teacher_forced, together
from millstream.trainer.share import ALONE, BatchShare

Kind = Literal["begin", "go on", "switch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout(Painted):
    """The last chunks of a stream of the student's own; the past has them at its end."""

    kind: Kind


class SelfForcingMethod:
    def __init__(
        self,
        student: TextAndDiT,
        teacher: TextAndDiT,
        critic: CausalDiT,
        pool: LatentPool,
        *,
        batch: int,
        levels: tuple[float, ...],
        options: SelfForcingOptions,
        favoured: Sequence[int] = (),
        compiled: bool = False,
        share: BatchShare = ALONE,
    ) -> None:
        """`favoured` are the ids of the words that the options name."""
        window, frames_per_chunk = options.window, options.frames_per_chunk
        assert window % frames_per_chunk == 0, f"window {window} is not whole chunks of {frames_per_chunk}"
        assert options.longest * frames_per_chunk >= window, f"{options.longest} chunks do not show a window of {window}"
        _, _, channels, rows, columns = pool.latents_KFCYX.shape
        device = pool.latents_KFCYX.device
        self._shape, self._options = (batch // share.ranks, frames_per_chunk, channels, rows, columns), options
        self._batch, self._share = batch, share
        kept = (window - frames_per_chunk, channels, rows, columns)
        self._reservoir = Reservoir(max(options.streams, batch), kept, pool.ids_KWS.shape[-1], device)
        self._student, self._pool = student, pool
        self._matching = Matching(
            student, teacher, critic, options=options, tokens=pool.ids_KWS.shape[-1], compiled=compiled, share=share
        )
        self.turns = self._matching.turns(self._roll, carries=self._reservoir.state)
        self._caption_weights = pool.favouring(favoured, options.favoured_by)
        self._levels = levels
        self._renewed = round(options.renewed * batch)
        self._views = StreamViews(student.dit.config, (rows, columns), device, options)
        is_fast = compiled and device.type == "cuda"
        self._painter = as_served(copy.deepcopy(student.dit), working_dtype(device), is_fast=is_fast)
        weights = plain_weights(self._painter)
        self._painted_with = [weights[name] for name, _ in student.dit.named_parameters()]

    @torch.no_grad()
    def _roll(self, generator: torch.Generator) -> Rollout:
        """Paint some chunks of streams new or kept, and keep them as they are then."""
        rows = self._reservoir.draw(self._batch, generator)
        lot = torch.rand(4, generator=generator, device=generator.device).tolist()
        begun = self._reservoir.all_begun(rows)
        choice = choose_rollout(lot, self._options, len(self._levels), all_begun=begun)
        before, ids = (None, None) if choice.kind == "begin" else self._reservoir.take(self._share.part(rows))
        if ids is None or choice.kind == "switch":
            ids = self._pool.draw_captions(self._shape[0], generator, self._caption_weights, self._share)
        torch._foreach_copy_(self._painted_with, list(self._student.dit.parameters()))
        recorder, text = StepRecorder(self._painter, choice.step, len(self._levels)), self._student.text(ids)
        stream = self._stream(recorder, text, choice.chunks, generator, before)
        self._keep(rows[: self._renewed] if choice.kind == "begin" and begun else rows, stream, ids)
        return self._views.rollout(choice, text, stream, recorder.starts, self._levels[choice.step], before)

    def _keep(self, rows: Tensor, stream: Tensor, ids: Tensor) -> None:
        """Everybody's streams, or as many as there are rows for, on every rank: whoever draws one goes on with it."""
        ends, count = stream[:, -self._reservoir.frames :].contiguous(), len(rows)
        self._reservoir.put(rows, self._share.collect(ends)[:count], self._share.collect(ids)[:count])

    def _stream(
        self, model: FlowModel, text: Tensor, chunks: int, generator: torch.Generator, before: Tensor | None = None
    ) -> Tensor:
        """So many chunks under a prompt, in the precision of serving, after `before`, which is read under the same."""
        dtype = working_dtype(text.device)
        return continued(
            model,
            ring_for(self._painter, self._shape, window=self._options.window, device=text.device),
            self._painter.read_prompt(text.to(dtype)),
            self._shape,
            chunks=chunks,
            levels=self._levels,
            noise=drawn_from(generator, self._shape, self._share),
            before=before,
            dtype=dtype,
        )


class RolloutChoice(NamedTuple):
    kind: Kind
    chunks: int
    """That are painted."""
    step: int
    """Of each chunk, which is learnt."""
    as_whole: bool
    """Whether it is judged so."""


def choose_rollout(lot: Sequence[float], options: SelfForcingOptions, steps: int, *, all_begun: bool) -> RolloutChoice:
    """From four numbers drawn evenly from 0 to 1, for streams that have begun or have not."""
    kind: Kind = "switch" if lot[0] < options.begun + options.switched else "go on"
    if lot[0] < options.begun or not all_begun:
        kind = "begin"
    shortest = options.window // options.frames_per_chunk
    longest = options.longest if kind == "go on" else shortest
    as_whole = kind == "go on" or (kind == "begin" and lot[3] < options.whole)
    as_whole = as_whole if options.judges == "both" else options.judges == "whole"
    return RolloutChoice(kind, shortest + int(lot[1] * (longest - shortest + 1)), int(lot[2] * steps), as_whole)


class StreamViews:
    """How the student makes the last window of each kind, which is how it is judged chunk by chunk; and windows as a whole.

    A stream's first latent frame stands for a single picture, which none does in the windows that Brook's teacher has learnt as
    a whole, and the first of every window does for a teacher that knows nothing else.
    """

    def __init__(self, config: DiTConfig, size: tuple[int, int], device: torch.device, options: SelfForcingOptions) -> None:
        frames_per_chunk, self._window = options.frames_per_chunk, options.window

        def view(layout: Layout, alike: int, unjudged: int = 0) -> StreamView:
            return StreamView(ChunkedSequence(layout, config, size, device), alike, unjudged)

        chunks = self._chunks = self._window // frames_per_chunk
        fresh = view(teacher_forced(range(chunks), frames_per_chunk, self._window), frames_per_chunk)
        later = view(teacher_forced(range(chunks - 1, 2 * chunks - 1), frames_per_chunk, self._window), frames_per_chunk)
        self.made: dict[Kind, StreamView] = {"begin": fresh, "go on": later, "switch": later}
        begun, later_on = (0, 1) if options.judges == "whole" else (1, 0)
        first, whole = (view(together(self._window), self._window, unjudged) for unjudged in (begun, later_on))
        self.wholes: dict[Kind, StreamView] = {"begin": first, "go on": whole, "switch": whole}
        lasting = options.guidance if options.lasting_guidance is None else options.lasting_guidance
        self._guidance: dict[Kind, float] = {"begin": options.guidance, "go on": lasting, "switch": options.guidance}

    def all(self) -> list[StreamView]:
        """In an order that all processes have."""
        return [*self.made.values(), *self.wholes.values()]

    def rollout(
        self,
        choice: RolloutChoice,
        text: Tensor,
        stream: Tensor,
        starts: list[Tensor],
        level: float,
        before: Tensor | None,
    ) -> Rollout:
        """What is learnt from a stream that was painted after `before`, which it begins with: its last window."""
        kind, window = choice.kind, self._window
        past = stream[:, -(window + (0 if before is None else before.shape[1])) :].float()
        return Rollout(
            kind=kind,
            text=text,
            past=past,
            starts=torch.cat(starts[-self._chunks :], dim=1).float(),
            level_BF=torch.full((len(past), window), level, device=past.device),
            made=self.made[kind],
            pictures=past[:, -window:],
            judged=(self.wholes if choice.as_whole else self.made)[kind],
            guidance=self._guidance[kind],
        )


class StepRecorder:
    """A DiT that remembers what it was shown at one step of every chunk."""

    def __init__(self, dit: CausalDiT, step: int, steps_per_chunk: int) -> None:
        self._dit, self._step, self._steps, self._calls = dit, step, steps_per_chunk, 0
        self.starts: list[Tensor] = []
        self.commit = dit.commit

    def __call__(self, latents_BFCYX: Tensor, level_BF: Tensor, memory: Memory, cross: CrossKV) -> Tensor:
        if self._calls % self._steps == self._step:
            self.starts.append(latents_BFCYX)
        self._calls += 1
        flow: Tensor = self._dit(latents_BFCYX, level_BF, memory, cross)
        return flow
