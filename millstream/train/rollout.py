"""Streams of a batch, for teachers and students: the same sampler and the same ring as serving.

Shapes: B batch, F frames, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from millstream.core.schedule import FULL
from millstream.core.speed import Speed
from millstream.models import sampler
from millstream.models.dit import CausalDiT, CrossKV
from millstream.models.entries import NO_ENTRIES, Entries
from millstream.models.fast.apply import quicken
from millstream.models.kv import KVRing, Memory
from millstream.models.ring_shape import RingShape
from millstream.ops.precision import working_dtype
from millstream.parallel.mesh_dit import MeshDiT

FAST = Speed(blocks=True, round_keys=True)
"""Speed of rollouts on a GPU, without a graph: a graph would belong to one ring, and each rollout has its
own."""
Noise = Callable[[int, int], Tensor]
"""Function that returns the noise of a chunk, by its number in the stream, at a step."""


def as_served(dit: CausalDiT, dtype: torch.dtype, *, is_fast: bool) -> CausalDiT:
    """Return the DiT that rolls out: in the dtype of serving, on the fast path if `is_fast`. `dit` itself is
    changed."""
    dit = dit.to(dtype).requires_grad_(requires_grad=False)
    return quicken(dit, FAST) if is_fast else dit


@dataclass(frozen=True, slots=True)
class Guided:
    """DiT with guidance, which moves further from what it would paint without a prompt. The sampler calls it
    as a plain flow model. Both sides have the same entries: guidance is towards words alone.

    Both are computed in one call of twice the batch, so the ring must be of twice the batch too.
    """

    dit: sampler.FlowModel
    scale: float

    def __call__(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> Tensor:
        both = latents_BFCYX.repeat(2, 1, 1, 1, 1)
        flow = self.dit(both, level_BF.repeat(2, 1), memory, cross, entries.repeated(2))
        asked, without = flow.float().chunk(2)
        return guided_flow(asked, without, self.scale)

    def commit(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> None:
        both = latents_BFCYX.repeat(2, 1, 1, 1, 1)
        self.dit.commit(both, level_BF.repeat(2, 1), memory, cross, entries.repeated(2))


def guided_flow(asked: Tensor, without: Tensor, scale: float) -> Tensor:
    """Return the flow with guidance: that under a prompt, moved away from that under none."""
    return without + scale * (asked - without)


def ring_for(
    dit: CausalDiT | MeshDiT,
    shape: tuple[int, ...],
    *,
    window: int,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> KVRing:
    """Make a ring for latents [B, F, C, Y, X] of that shape, in the dtype that autocast computes in unless
    another is given."""
    config, (batch, _, _, rows, columns) = dit.config, shape
    ring = RingShape(
        layers=config.layers,
        heads=dit.cached_heads,
        head_width=config.head_width,
        grid=(rows // config.patch, columns // config.patch),
        window=window,
        sink=0,
        batch=batch,
    )
    return KVRing(ring, device=device, dtype=dtype or working_dtype(device))


def solve(
    model: sampler.FlowModel,
    noise_BFCYX: Tensor,
    levels: tuple[float, ...],
    memory: Memory,
    cross: CrossKV,
    entries: Entries = NO_ENTRIES,
) -> Tensor:
    """Follow the flow from noise to clean latents in Euler steps, without new noise on the way."""
    current = noise_BFCYX.float()
    for level, following in zip(levels, (*levels[1:], 0.0), strict=True):
        flow = model(current, sampler.per_frame(level, current), memory, cross, entries).float()
        current = current - (level - following) / FULL * flow
    return current


@torch.no_grad()
def guided_end(
    guided: Guided,
    context_BFCYX: Tensor,
    noise_BFCYX: Tensor,
    levels: tuple[float, ...],
    ring: KVRing,
    cross: CrossKV,
    entries: Entries = NO_ENTRIES,
    given: int = 0,
) -> Tensor:
    """Return where a guided teacher goes from noise, given the clean frames before it, through an empty ring.
    `entries` are those of the context's frames and its own; `given` as in `recommit`."""
    frames = noise_BFCYX.shape[1]
    before = context_BFCYX.shape[1]
    chunks = range((before - given) // frames)
    recommit(guided, ring, cross, context_BFCYX, chunks=chunks, frames=frames, entries=entries, given=given)
    ring.place(list(range(before, before + frames)))
    return solve(guided, noise_BFCYX, levels, ring, cross, entries.frames(slice(before, before + frames)))


@torch.no_grad()
def stream_batch(
    model: sampler.FlowModel,
    ring: KVRing,
    cross: CrossKV,
    shape: tuple[int, ...],
    *,
    chunks: int,
    levels: tuple[float, ...],
    noise: Noise,
    first: int = 0,
    dtype: torch.dtype = torch.float32,
    entries: Entries = NO_ENTRIES,
    given: int = 0,
) -> Tensor:
    """Generate clean latents [B, chunks*F, C, Y, X] from chunk `first` on as a session would, in the dtype
    the model is given them. `entries` are those of all frames of the stream, from its first on. Chunk 0 comes
    after `given` frames."""
    frames = shape[1]
    parts = []
    for chunk in range(first, first + chunks):
        here = slice(given + chunk * frames, given + (chunk + 1) * frames)
        entered = entries.frames(here)
        ring.place(list(range(here.start, here.stop)))
        clean = sampler.denoise(
            model, noise(chunk, 0).to(dtype), levels, ring, cross, partial(noise, chunk), entered
        )
        sampler.commit(model, clean, 0.0, ring, cross, entered)
        parts.append(clean)
    return torch.cat(parts, dim=1)


@torch.no_grad()
def continued(
    model: sampler.FlowModel,
    ring: KVRing,
    cross: CrossKV,
    shape: tuple[int, ...],
    *,
    chunks: int,
    levels: tuple[float, ...],
    noise: Noise,
    before: Tensor | None,
    dtype: torch.dtype,
    entries: Entries = NO_ENTRIES,
    given: int = 0,
) -> Tensor:
    """Generate chunks after `before`, which is read under the same prompt and comes first in what is
    returned. `entries` are those of all frames that are returned; `given` as in `recommit`."""
    first = 0 if before is None else (before.shape[1] - given) // shape[1]
    if before is not None:
        recommit(
            model, ring, cross, before, chunks=range(first), frames=shape[1], entries=entries, given=given
        )
    made = stream_batch(
        model,
        ring,
        cross,
        shape,
        chunks=chunks,
        levels=levels,
        noise=noise,
        first=first,
        dtype=dtype,
        entries=entries,
        given=given,
    )
    return made if before is None else torch.cat([before, made], dim=1)


def drawn_from(generator: torch.Generator, shape: tuple[int, ...]) -> Noise:
    """Return noise that is drawn from a generator in the order of the calls."""
    return lambda chunk, step: torch.randn(shape, generator=generator, device=generator.device)


@torch.no_grad()
def recommit(
    model: sampler.FlowModel,
    ring: KVRing,
    cross: CrossKV,
    clean_BFCYX: Tensor,
    *,
    chunks: range,
    frames: int,
    entries: Entries = NO_ENTRIES,
    given: int = 0,
) -> None:
    """Fill an empty ring with these chunks of a stream, under another prompt: what `recompute` does. `given`
    frames come before chunk 0, which are those of a picture."""
    assert clean_BFCYX.shape[1] >= given + chunks.stop * frames, (
        f"{clean_BFCYX.shape[1]} frames do not make {given} and {chunks} of {frames}"
    )
    runs = [slice(given + chunk * frames, given + (chunk + 1) * frames) for chunk in chunks]
    for here in [slice(0, given), *runs] if given else runs:
        ring.place(list(range(here.start, here.stop)))
        sampler.commit(model, clean_BFCYX[:, here], 0.0, ring, cross, entries.frames(here))
