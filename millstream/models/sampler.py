"""A few steps from noise to a clean chunk, with fresh noise in between or a multistep solver's steps.

The same loop serves streaming and the train's rollouts. It asks for model calls and is answered with flows,
so that whoever answers may work on several chunks in turn. It knows neither sessions nor where noise comes
from.
Shapes: B batch, F frames, C channels, Y and X latent rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from millstream.core.config import Sampler
from millstream.core.schedule import FULL
from millstream.models.dit import CrossKV
from millstream.models.entries import NO_ENTRIES, Entries
from millstream.models.kv import Memory
from millstream.models.unipc import UniPC


class FlowModel(Protocol):
    """Interface of a DiT for the sampler: the flow of a chunk, and a pass that only writes keys and
    values."""

    def __call__(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> Tensor: ...

    def commit(
        self,
        latents_BFCYX: Tensor,
        level_BF: Tensor,
        memory: Memory,
        cross: CrossKV,
        entries: Entries = NO_ENTRIES,
    ) -> None: ...


class Call(NamedTuple):
    """One model call that a chunk asks for. The answer is the flow, or None where it only leaves keys and
    values."""

    phase: str
    """Purpose of the call: step, commit or recompute."""
    latents_BFCYX: Tensor
    level_BF: Tensor
    memory: Memory
    cross: CrossKV
    entries: Entries = NO_ENTRIES

    @property
    def predicts(self) -> bool:
        return self.phase == "step"

    def answered_by(self, model: FlowModel) -> Tensor | None:
        call = model if self.predicts else model.commit
        return call(self.latents_BFCYX, self.level_BF, self.memory, self.cross, self.entries)


T = TypeVar("T")
Asking = Generator[Call, Any, T]
"""Work that asks for model calls one after the other, and ends with its result."""


def mix(clean: Tensor, noise: Tensor, level: float | Tensor) -> Tensor:
    """Latents at a noise level, in float32."""
    share = level / FULL
    return (1.0 - share) * clean.float() + share * noise.float()


def denoise(
    model: FlowModel,
    latents_BFCYX: Tensor,
    levels: tuple[float, ...],
    memory: Memory,
    cross: CrossKV,
    noise: Callable[[int], Tensor],
    entries: Entries = NO_ENTRIES,
    num_given: int = 0,
    sampler: Sampler = "renoise",
) -> Tensor:
    """Clean latents in the dtype of `latents_BFCYX`, which are at `levels[0]`. `noise(i)` is what step i
    starts from, if it is noised again. The first `num_given` frames are clean from the beginning and stay as
    they are."""
    asking = denoising(latents_BFCYX, levels, memory, cross, noise, entries, num_given, sampler)
    return answer(asking, lambda call: call.answered_by(model))


def denoising(
    latents_BFCYX: Tensor,
    levels: tuple[float, ...],
    memory: Memory,
    cross: CrossKV,
    noise: Callable[[int], Tensor],
    entries: Entries = NO_ENTRIES,
    num_given: int = 0,
    sampler: Sampler = "renoise",
) -> Asking[Tensor]:
    """Denoise a chunk as `denoise` does, by asking for the model calls."""
    assert levels, "a chunk is denoised in one step or more"
    dtype = latents_BFCYX.dtype
    current = latents_BFCYX.float()
    given = current[:, :num_given]
    clean = current
    solver = UniPC(levels) if sampler == "unipc" else None
    for step, level in enumerate(levels):
        if step and solver is not None:
            current = solver.advance(current, clean)
        elif step:
            current = mix(clean, noise(step), level)
        level_BF = per_frame(level, current)
        if num_given:
            current = torch.cat([given, current[:, num_given:]], dim=1)
            level_BF[:, :num_given] = 0.0
        flow = yield Call("step", current.to(dtype), level_BF, memory, cross, entries)
        clean = current - level / FULL * flow.float()
    if num_given:
        clean = torch.cat([given, clean[:, num_given:]], dim=1)
    return clean.to(dtype)


def answer(asking: Asking[T], give: Callable[[Call], Tensor | None]) -> T:
    """Give each call its answer at once, and return the result."""
    given = None
    while True:
        try:
            call = asking.send(given)
        except StopIteration as done:
            return done.value
        given = give(call)


def add_noise(clean_BFCYX: Tensor, level: float, noise: Callable[[], Tensor]) -> Tensor:
    """Clean latents at the level the window is kept at, which is mostly 0: then as they are."""
    return clean_BFCYX if level == 0 else mix(clean_BFCYX, noise(), level).to(clean_BFCYX.dtype)


def commit(
    model: FlowModel,
    settled_BFCYX: Tensor,
    level: float,
    memory: Memory,
    cross: CrossKV,
    entries: Entries = NO_ENTRIES,
) -> None:
    """Write a finished chunk's keys and values to the window."""
    asking = committing("commit", settled_BFCYX, level, memory, cross, entries)
    answer(asking, lambda call: call.answered_by(model))


def committing(
    phase: str,
    settled_BFCYX: Tensor,
    level: float,
    memory: Memory,
    cross: CrossKV,
    entries: Entries = NO_ENTRIES,
) -> Asking[None]:
    """Commit a chunk as `commit` does, by asking for the model call."""
    yield Call(phase, settled_BFCYX, per_frame(level, settled_BFCYX), memory, cross, entries)


def per_frame(level: float, latents_BFCYX: Tensor) -> Tensor:
    return torch.full(latents_BFCYX.shape[:2], level, device=latents_BFCYX.device, dtype=torch.float32)
