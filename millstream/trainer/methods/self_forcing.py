"""Learning from one's own stream: the student continues what it painted itself, and is pulled to where the teacher
thinks such pictures should be more than a critic, trained on the student's own, thinks they are.

Distribution matching distillation over self-made context. The rollout runs on the ring, without gradients; one step of
every chunk is then computed again with gradients in a single pass, its context being the stream as it came out. So
gradients reach one step back and never through the cache.
Shapes: B batch, F frames, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.core.schedule import FULL
from millstream.models.brook.text import PAD
from millstream.models.dit import CausalDiT, CrossKV
from millstream.models.kv import Memory
from millstream.trainer.loop import Turn
from millstream.trainer.methods.flow import TextAndDiT
from millstream.trainer.noising import at_levels, chunk_levels, per_pixel
from millstream.trainer.pool import LatentPool
from millstream.trainer.rollout import ring_for, stream_batch
from millstream.trainer.sequence import ChunkedSequence, forced_flow, teacher_forced


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
        guidance: float = 2.5,
        shift: float = 3.0,
        student_every: int = 4,
        frames_per_chunk: int = 3,
        window: int = 9,
    ) -> None:
        self.turns = (
            Turn("student", student.dit, self._student_losses, every=student_every),
            Turn("critic", critic, self._critic_losses),
        )
        self._student, self._teacher, self._critic, self._pool = student, teacher, critic, pool
        self._batch, self._levels, self._chunks, self._guidance, self._shift = batch, levels, chunks, guidance, shift
        _, _, channels, rows, columns = pool.latents_KFCYX.shape
        self._shape = (batch, frames_per_chunk, channels, rows, columns)
        layout, device = teacher_forced(chunks, frames_per_chunk, window), pool.latents_KFCYX.device
        self._sequence = ChunkedSequence(layout, student.dit.config, (rows, columns), device)
        self._window = window

    def _student_losses(self, generator: torch.Generator) -> dict[str, Tensor]:
        text, empty = self._prompts(generator)
        stream, starts, level = self._roll(text, generator)
        with torch.autocast(stream.device.type, dtype=torch.bfloat16):
            flow = self._flows(self._student.dit, stream, starts, level, self._student.dit.read_prompt(text))
            mine = starts - per_pixel(level) / FULL * flow
            target = self._pull(mine.detach(), stream, text, empty, generator)
        return {"match": 0.5 * (mine - target).square().mean()}

    def _critic_losses(self, generator: torch.Generator) -> dict[str, Tensor]:
        """The critic learns the flow of what the student paints."""
        text, _ = self._prompts(generator)
        stream, _, _ = self._roll(text, generator)
        noisy, noise, level = self._noised(stream, generator)
        with torch.autocast(stream.device.type, dtype=torch.bfloat16):
            flow = self._flows(self._critic, stream, noisy, level, self._critic.read_prompt(text))
        return {"critic": (flow - (noise - stream)).square().mean()}

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
        _, ids = self._pool.draw(self._batch, generator)
        with torch.no_grad():
            return self._student.text(ids), self._student.text(torch.full_like(ids, PAD))

    @torch.no_grad()
    def _roll(self, text: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """A stream of the student's own, what one step of each chunk started from, and that step's level [B, F]."""
        dit, device = self._student.dit, text.device
        chosen = int(torch.randint(len(self._levels), (1,), generator=generator, device=device))
        recorder = _Recorder(dit, chosen, len(self._levels))
        ring = ring_for(dit, self._shape, window=self._window, device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            cross = dit.read_prompt(text)
            stream = stream_batch(
                recorder, ring, cross, self._shape, chunks=self._chunks, levels=self._levels, generator=generator
            )
        return stream, torch.cat(recorder.starts, dim=1), torch.full(stream.shape[:2], self._levels[chosen], device=device)

    def _flows(self, dit: CausalDiT, stream: Tensor, noisy: Tensor, level_BF: Tensor, cross: CrossKV) -> Tensor:
        """Flows of noisy chunks whose past is the stream as it came out."""
        return forced_flow(dit, stream, noisy, level_BF, self._sequence, cross)

    def _noised(self, clean: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Clean latents at one random level a chunk, the noise, and the level [B, F]."""
        level = chunk_levels(clean, self._shape[1], self._shift, generator, margin=0.02)
        noise = torch.randn(clean.shape, generator=generator, device=clean.device)
        return at_levels(clean, noise, level), noise, level


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
