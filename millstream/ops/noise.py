"""Gaussian noise as a pure function of (seed, epoch, chunk, step).

Philox 4x32-10, a counter-based generator, in integer tensor operations: the same bits on every device and
for every split of the work, with no state to save. The last step (Box-Muller) uses the device's own log,
sin and cos, so normals agree across devices to a few units in the last place, and exactly on one device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from millstream.ops.backend import has_triton

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

COMMIT_STEP = 0xFFFF
"""Stands for `step` in the noise of a commit pass."""
CONTEXT_STEP = 0xFFFE
"""Stands for `step` in the noise of a recompute."""

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[int, int] | tuple[Tensor, Tensor]) -> Words:
    """Four 32-bit words in, four out. Words are int64 tensors that hold unsigned 32-bit values; so may the
    key's be, of a shape that broadcasts to theirs."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]  # wrap modulo 2^64, which leaves the bits right
        product1 = c2 * _MULTIPLIERS[1]
        c0 = _high(product1).bitwise_xor_(c1).bitwise_xor_(k0)
        c2 = _high(product0).bitwise_xor_(c3).bitwise_xor_(k1)
        c1 = product1.bitwise_and_(_WORD)
        c3 = product0.bitwise_and_(_WORD)
        k0 = (k0 + _WEYL[0]) & _WORD
        k1 = (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def gaussian(
    shape: Sequence[int], *, seed: int, epoch: int, chunk: int, step: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Standard normals in float32; on a GPU in one kernel."""
    count = math.prod(shape)
    if torch.device(device).type == "cuda" and has_triton():
        from millstream.ops.kernels.noise import launch_gaussian

        name = dict(epoch=epoch & _WORD, chunk=chunk & _WORD, step=step & _WORD)
        return launch_gaussian(count, seed=seed, **name, device=device).view(tuple(shape))
    block = torch.arange(-(-count // 4), dtype=torch.int64, device=device)
    return _normals(block, (step, chunk, epoch), (seed & _WORD, (seed >> 32) & _WORD))[:count].reshape(
        tuple(shape)
    )


def gaussian_rows(shape: Sequence[int], seeds_B: Tensor, *, epoch: int, chunk: int, step: int) -> Tensor:
    """[B, *shape]: each row what `gaussian` draws from its seed, where the seeds are."""
    if seeds_B.is_cuda and has_triton():
        from millstream.ops.kernels.noise import launch_gaussian_rows

        name = dict(epoch=epoch & _WORD, chunk=chunk & _WORD, step=step & _WORD)
        return launch_gaussian_rows(math.prod(shape), seeds_B, **name).view(len(seeds_B), *shape)
    count = math.prod(shape)
    batch = len(seeds_B)
    block = torch.arange(-(-count // 4), dtype=torch.int64, device=seeds_B.device).repeat(batch, 1)
    key = seeds_B[:, None] & _WORD, (seeds_B[:, None] >> 32) & _WORD
    return _normals(block, (step, chunk, epoch), key)[:, :count].reshape(batch, *shape)


def _normals(
    block: Tensor, name: tuple[int, int, int], key: tuple[int, int] | tuple[Tensor, Tensor]
) -> Tensor:
    """Four of each block, in its place."""
    step, chunk, epoch = (torch.full_like(block, word & _WORD) for word in name)
    w0, w1, w2, w3 = philox((block, step, chunk, epoch), key)
    return torch.stack([*_box_muller(w0, w1), *_box_muller(w2, w3)], dim=-1).flatten(-2)


def _high(product: Tensor) -> Tensor:
    """The upper word, in fresh memory."""
    return (product >> 32).bitwise_and_(_WORD)


def _box_muller(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    uniform = (first.to(torch.float32) + 1.0) * 2.0**-32  # (0, 1]: the logarithm stays finite
    angle = second.to(torch.float32) * (2.0 * math.pi * 2.0**-32)
    radius = (-2.0 * uniform.log()).sqrt()
    return radius * angle.cos(), radius * angle.sin()
