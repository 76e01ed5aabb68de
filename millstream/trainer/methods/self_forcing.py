"""Learning from one's own stream: the student continues what it painted itself, and is pulled to where the teacher
thinks such pictures should be more than a critic, trained on the student's own, thinks they are.

Distribution matching distillation over self-made context. The rollout runs on the ring, in the precision of serving and
without gradients; one step of its last chunks is then computed again with gradients in a single pass, its context being
the stream as it came out. So gradients reach one step back and never through the cache. Streams are of random length:
what a student makes of its own late chunks is what decides whether it drifts. And in a share of them the prompt is
switched, as a session recomputes.
Shapes: B batch, F frames, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.core.schedule import FULL
from millstream.models.brook.text import PAD
from millstream.models.dit import CausalDiT, CrossKV
from millstream.models.kv import Memory
from millstream.models.sampler import FlowModel
from millstream.trainer.loop import Turn
from millstream.trainer.methods.flow import TextAndDiT
from millstream.trainer.noising import at_levels, chunk_levels, per_pixel
from millstream.trainer.pool import LatentPool
from millstream.trainer.rollout import recommit, ring_for, stream_batch
from millstream.trainer.sequence import ChunkedSequence, forced_flow, teacher_forced


@dataclass(frozen=True, slots=True)
class Rollout:
    """The last chunks of a stream of the student's own."""

    stream: Tensor
    """[B, F, C, Y, X], clean."""
    starts: Tensor
    """What one step of each chunk started from."""
    level_BF: Tensor
    """The noise level of that step."""
    weight_F: Tensor
    """1 for frames to learn from; 0 where a late stream's window is not wholly in sight."""


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
        chunks: int = 3,
        longest: int = 0,
        guidance: float = 2.5,
        shift: float = 3.0,
        student_every: int = 4,
        switched: float = 0.0,
        frames_per_chunk: int = 3,
        window: int = 9,
    ) -> None:
        """Learns from the last `chunks` of streams of that many, up to `longest`; `switched` is the share of batches in which
        the prompt changes before those whose whole window is in sight."""
        self.turns = (
            Turn("student", student.dit, self._student_losses, every=student_every),
            Turn("critic", critic, self._critic_losses),
        )
        late = longest > chunks or switched > 0
        assert not late or chunks * frames_per_chunk >= window, f"{chunks} chunks do not show a window of {window}"
        self._student, self._teacher, self._critic, self._pool = student, teacher, critic, pool
        self._batch, self._levels, self._guidance, self._shift = batch, levels, guidance, shift
        self._chunks, self._longest, self._window, self._switched = chunks, max(chunks, longest), window, switched
        _, _, channels, rows, columns = pool.latents_KFCYX.shape
        self._shape = (batch, frames_per_chunk, channels, rows, columns)
        layout, device = teacher_forced(range(chunks), frames_per_chunk, window), pool.latents_KFCYX.device
        self._sequence = ChunkedSequence(layout, student.dit.config, (rows, columns), device)
        self._painter = copy.deepcopy(student.dit).to(torch.bfloat16).requires_grad_(False)
        """The student as it is served: what rolls out."""

    def _student_losses(self, generator: torch.Generator) -> dict[str, Tensor]:
        text, empty = self._prompts(generator)
        rolled = self._roll(text, generator)
        with torch.autocast(text.device.type, dtype=torch.bfloat16):
            cross = self._student.dit.read_prompt(text)
            flow = self._flows(self._student.dit, rolled.stream, rolled.starts, rolled.level_BF, cross)
            mine = rolled.starts - per_pixel(rolled.level_BF) / FULL * flow
            target = self._pull(mine.detach(), rolled.stream, text, empty, generator)
        return {"match": 0.5 * weighted((mine - target).square(), rolled.weight_F)}

    def _critic_losses(self, generator: torch.Generator) -> dict[str, Tensor]:
        """The critic learns the flow of what the student paints."""
        text, _ = self._prompts(generator)
        rolled = self._roll(text, generator)
        noisy, noise, level = self._noised(rolled.stream, generator)
        with torch.autocast(text.device.type, dtype=torch.bfloat16):
            flow = self._flows(self._critic, rolled.stream, noisy, level, self._critic.read_prompt(text))
        return {"critic": weighted((flow - (noise - rolled.stream)).square(), rolled.weight_F)}

    @torch.no_grad()
    def _pull(self, mine: Tensor, stream: Tensor, text: Tensor, empty: Tensor, generator: torch.Generator) -> Tensor:
        """Where the student should have been: moved by the difference between what teacher and critic see in it."""
        noisy, _, level = self._noised(mine, generator)
        teacher, critic = self._teacher.dit, self._critic
        without = self._flows(teacher, stream, noisy, level, teacher.read_prompt(empty))
        wanted = without + self._guidance * (self._flows(teacher, stream, noisy, level, teacher.read_prompt(text)) - without)
        found = self._flows(critic, stream, noisy, level, critic.read_prompt(text))
        share = per_pixel(level) / FULL
        real, fake = noisy - share * wanted, noisy - share * found
        scale = (mine - real).abs().mean(dim=(1, 2, 3, 4), keepdim=True).clamp_min(1e-3)
        return mine - (fake - real) / scale

    def _prompts(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        ids = self._pool.draw(self._batch, generator).ids_BS
        with torch.no_grad():
            return self._student.text(ids), self._student.text(torch.full_like(ids, PAD))

    @torch.no_grad()
    def _roll(self, text: Tensor, generator: torch.Generator) -> Rollout:
        device, frames = text.device, self._shape[1]
        chosen = int(torch.randint(len(self._levels), (1,), generator=generator, device=device))
        length = int(torch.randint(self._chunks, self._longest + 1, (1,), generator=generator, device=device))
        switches = bool(torch.rand(1, generator=generator, device=device) < self._switched)
        torch._foreach_copy_(list(self._painter.parameters()), list(self._student.dit.parameters()))
        recorder = _Recorder(self._painter, chosen, len(self._levels))
        make = self._switched_stream if switches else self._stream
        stream = make(recorder, text, length, generator)
        shown = self._chunks * frames
        unseen = self._window - frames if switches or length > self._chunks else 0
        return Rollout(
            stream=stream[:, -shown:].float(),
            starts=torch.cat(recorder.starts[-self._chunks :], dim=1).float(),
            level_BF=torch.full((self._batch, shown), self._levels[chosen], device=device),
            weight_F=(torch.arange(shown, device=device) >= unseen).float(),
        )

    def _stream(
        self, model: FlowModel, text: Tensor, chunks: int, generator: torch.Generator, before: Tensor | None = None
    ) -> Tensor:
        """A stream of so many chunks, in the precision of serving; `before` is what it goes on from, under a new prompt."""
        frames = self._shape[1]
        ring = ring_for(self._painter, self._shape, window=self._window, device=text.device)
        cross = self._painter.read_prompt(text.to(torch.bfloat16))
        first = 0 if before is None else before.shape[1] // frames
        if before is not None:
            kept = min(first, self._window // frames - 1)
            recommit(model, ring, cross, before, chunks=range(first - kept, first), frames=frames)
        made = stream_batch(
            model,
            ring,
            cross,
            self._shape,
            chunks=chunks,
            levels=self._levels,
            generator=generator,
            first=first,
            dtype=torch.bfloat16,
        )
        return made if before is None else torch.cat([before, made], dim=1)

    def _switched_stream(self, recorder: _Recorder, text: Tensor, chunks: int, generator: torch.Generator) -> Tensor:
        """So many chunks, of which those at the end whose whole window is in sight are under `text`, the rest under another."""
        after = self._chunks - (self._window // self._shape[1] - 1)
        other, _ = self._prompts(generator)
        before = self._stream(recorder, other, chunks - after, generator)
        return self._stream(recorder, text, after, generator, before)

    def _flows(self, dit: CausalDiT, stream: Tensor, noisy: Tensor, level_BF: Tensor, cross: CrossKV) -> Tensor:
        """Flows of noisy chunks whose past is the stream as it came out."""
        return forced_flow(dit, stream, noisy, level_BF, self._sequence, cross)

    def _noised(self, clean: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Clean latents at one random level a chunk, the noise, and the level [B, F]."""
        level = chunk_levels(clean, self._shape[1], self._shift, generator, margin=0.02)
        noise = torch.randn(clean.shape, generator=generator, device=clean.device)
        return at_levels(clean, noise, level), noise, level


def weighted(errors_BFCYX: Tensor, weight_F: Tensor) -> Tensor:
    """Mean over the frames that count."""
    return (errors_BFCYX.mean(dim=(0, 2, 3, 4)) * weight_F).sum() / weight_F.sum()


class _Recorder:
    """A DiT that remembers what it was shown at one step of every chunk."""

    def __init__(self, dit: CausalDiT, step: int, steps_per_chunk: int) -> None:
        self._dit, self._step, self._steps, self._calls = dit, step, steps_per_chunk, 0
        self.starts: list[Tensor] = []
        self.commit = dit.commit

    def __call__(self, latents_BFCYX: Tensor, level_BF: Tensor, memory: Memory, cross: CrossKV) -> Tensor:
        if self._calls % self._steps == self._step:
            self.starts.append(latents_BFCYX)
        self._calls += 1
        return self._dit(latents_BFCYX, level_BF, memory, cross)
