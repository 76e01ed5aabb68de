"""Rotary phases along three axes: time, height, width.

Phases are computed, not looked up: frame 1,000,000 costs and is as exact as frame 0. A phase is taken in
double precision modulo a turn and only then rounded. Pairs of neighbouring channels share one phase.
Shapes: F frames, L tokens, N heads, H head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

_BASE = 10000.0
_VECTOR = 16
"""Complex numbers that fill whole vectors on any CPU."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Cosine and sine per token and channel pair, float32, shaped [L, 1, H/2]."""

    cos: Tensor
    sin: Tensor


def frame_numbers(values: Sequence[int], device: torch.device) -> Tensor:
    """Return int64 numbers that the device itself writes: a copy from the host would wait for all that is
    queued there, hundreds of milliseconds."""
    return torch.stack([torch.full((), value, dtype=torch.int64, device=device) for value in values])


def axis_pairs(head_width: int) -> tuple[int, int, int]:
    """Return how many channel pairs turn with time, height and width."""
    assert head_width % 2 == 0, f"channels turn in pairs, got a head of {head_width}"
    side = head_width // 6
    return head_width // 2 - 2 * side, side, side


def frame_phases(frames: Tensor, grid: tuple[int, int], head_width: int) -> Phases:
    """Phases of all tokens of the given frame numbers, over a grid of height x width tokens."""
    rows, columns = grid
    turn_t, turn_y, turn_x = (_frequencies(pairs, frames.device) for pairs in axis_pairs(head_width))
    phase_t = _turns(frames, turn_t)[:, None, None].expand(-1, rows, columns, -1)
    phase_y = _turns(torch.arange(rows, device=frames.device), turn_y)[None, :, None].expand(
        len(frames), -1, columns, -1
    )
    phase_x = _turns(torch.arange(columns, device=frames.device), turn_x)[None, None].expand(
        len(frames), rows, -1, -1
    )
    return _rounded(torch.cat([phase_t, phase_y, phase_x], dim=-1).reshape(-1, 1, head_width // 2))


def shift_phases(frames: Tensor, tokens_per_frame: int, head_width: int) -> Phases:
    """Phases that move keys by whole frames in time and leave height and width alone."""
    pairs_t, pairs_y, pairs_x = axis_pairs(head_width)
    phase_t = _turns(frames, _frequencies(pairs_t, frames.device))
    still = phase_t.new_zeros(len(frames), pairs_y + pairs_x)
    return _rounded(torch.cat([phase_t, still], dim=-1).repeat_interleave(tokens_per_frame, dim=0)[:, None])


def rotate(x_LNH: Tensor, phases: Phases) -> Tensor:
    """Turn each channel pair by its token's phase. Leading batch dimensions are free."""
    if _as_complex(x_LNH):
        pairs = torch.view_as_complex(x_LNH.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * torch.complex(phases.cos, phases.sin)).flatten(-2).to(x_LNH.dtype)
    if torch.compiler.is_compiling():
        return _turned_in_place(x_LNH, phases)
    even, odd = x_LNH.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * phases.cos - odd * phases.sin, even * phases.sin + odd * phases.cos], dim=-1)
    return turned.flatten(-2).to(x_LNH.dtype)


def _turned_in_place(x_LNH: Tensor, phases: Phases) -> Tensor:
    """Turn pairs as `rotate` does, to the same numbers, for the compiler: generated kernels read pairs as
    they lie, and halves of a stack separately."""
    pairs = x_LNH.float().unflatten(-1, (-1, 2))
    sign = 2.0 * torch.arange(2, device=x_LNH.device, dtype=torch.float32) - 1.0
    turned = pairs * phases.cos.unsqueeze(-1) + pairs.flip(-1) * (phases.sin.unsqueeze(-1) * sign)
    return turned.flatten(-2).to(x_LNH.dtype)


def _as_complex(x_LNH: Tensor) -> bool:
    """Return whether complex products give the same bits in an eighth of the time: on an x86 CPU, in whole
    vectors."""
    eager_on_cpu = (
        x_LNH.device.type == "cpu" and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    )
    return eager_on_cpu and x_LNH.shape[-1] % (2 * _VECTOR) == 0 and _complex_products_round_twice()


@cache
def _complex_products_round_twice() -> bool:
    """Return whether complex products round as two products and their sum do; where the CPU's complex product
    rounds once, its bits differ."""
    generator = torch.Generator().manual_seed(0)
    a, b, c, d = torch.randn(4, 64 * _VECTOR, generator=generator)
    product = torch.complex(a, b) * torch.complex(c, d)
    return torch.equal(product.real, a * c - b * d) and torch.equal(product.imag, a * d + b * c)


def _frequencies(pairs: int, device: torch.device) -> Tensor:
    return _BASE ** (-torch.arange(pairs, dtype=torch.float64, device=device) / pairs)


def _turns(positions: Tensor, frequencies: Tensor) -> Tensor:
    return torch.remainder(positions.to(torch.float64)[:, None] * frequencies, 2.0 * math.pi)


def _rounded(phase: Tensor) -> Phases:
    return Phases(phase.cos().float(), phase.sin().float())
