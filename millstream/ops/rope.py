"""Rotary phases along three axes: time, height, width.

Phases are computed, not looked up: frame 1,000,000 costs and is as exact as frame 0. A phase is taken in
double precision modulo a turn and only then rounded. Pairs of neighbouring channels share one phase.
Shapes: F frames, L tokens, N heads, H head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_BASE = 10000.0


@dataclass(frozen=True, slots=True)
class Phases:
    """Cosine and sine per token and channel pair, float32, shaped [L, 1, H/2]."""

    cos: Tensor
    sin: Tensor


def axis_pairs(head_width: int) -> tuple[int, int, int]:
    """How many channel pairs turn with time, height and width."""
    assert head_width % 2 == 0, f"channels turn in pairs, got a head of {head_width}"
    side = head_width // 6
    return head_width // 2 - 2 * side, side, side


def frame_phases(frames: Tensor, grid: tuple[int, int], head_width: int) -> Phases:
    """Phases of all tokens of the given frame numbers, over a grid of height x width tokens."""
    rows, columns = grid
    turn_t, turn_y, turn_x = (_frequencies(pairs, frames.device) for pairs in axis_pairs(head_width))
    phase_t = _turns(frames, turn_t)[:, None, None].expand(-1, rows, columns, -1)
    phase_y = _turns(torch.arange(rows, device=frames.device), turn_y)[None, :, None].expand(len(frames), -1, columns, -1)
    phase_x = _turns(torch.arange(columns, device=frames.device), turn_x)[None, None].expand(len(frames), rows, -1, -1)
    return _rounded(torch.cat([phase_t, phase_y, phase_x], dim=-1).reshape(-1, 1, head_width // 2))


def shift_phases(frames: Tensor, tokens_per_frame: int, head_width: int) -> Phases:
    """Phases that move keys by whole frames in time and leave height and width alone."""
    pairs_t, pairs_y, pairs_x = axis_pairs(head_width)
    phase_t = _turns(frames, _frequencies(pairs_t, frames.device))
    still = phase_t.new_zeros(len(frames), pairs_y + pairs_x)
    return _rounded(torch.cat([phase_t, still], dim=-1).repeat_interleave(tokens_per_frame, dim=0)[:, None])


def rotate(x_LNH: Tensor, phases: Phases) -> Tensor:
    """Turn each channel pair by its token's phase. Leading batch dimensions are free."""
    even, odd = x_LNH.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * phases.cos - odd * phases.sin, even * phases.sin + odd * phases.cos], dim=-1)
    return turned.flatten(-2).to(x_LNH.dtype)


def _frequencies(pairs: int, device: torch.device) -> Tensor:
    return _BASE ** (-torch.arange(pairs, dtype=torch.float64, device=device) / pairs)


def _turns(positions: Tensor, frequencies: Tensor) -> Tensor:
    return torch.remainder(positions.to(torch.float64)[:, None] * frequencies, 2.0 * math.pi)


def _rounded(phase: Tensor) -> Phases:
    return Phases(phase.cos().float(), phase.sin().float())
