"""Matmuls in fewer bits over float32 weights, and what float16 needs so that small gradients do not vanish.

bfloat16 has float32's range and needs nothing. The smallest number of float16 is 6e-8: losses are scaled up
before the backward pass and gradients down after it. The scale doubles after many steps without overflow; a
step in which one happens, anywhere, is skipped on every rank, and the scale is halved.

What needs the range or the digits of float32 has them, whatever the precision:

    weights that learn, gradients, moments, averages  float32 throughout (changed by `masters` and `offload`)
    the sum that goes from block to block             modulation is float32; its matmuls become float32 too
    layer norms and root-mean-square norms            reduced in float32 by their kernels
    softmax                                           in float32 inside the attention kernels
    noise levels' features, rotary phases             made in float64; keys and queries are turned in float32
    the loss, the norm of gradients, clipping         float32
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["fp32", "bf16", "fp16", "fp8"]
"""Precision of matmuls. With `fp8` matmuls inside blocks are made in 8-bit floats (`float8.py`) and
everything else as with `bf16`."""
IN_BFLOAT16: tuple[Precision, ...] = ("bf16", "fp8")


def in_precision(precision: Precision, device: torch.device) -> torch.autocast:
    """Return a context in which matmuls are made in this precision."""
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype=dtype, enabled=precision != "fp32")


@dataclass(slots=True)
class LossScale:
    value: float = 2.0**16
    grows_after: int = 2000
    """Steps in a row without overflow."""
    good_steps: int = 0
    """Steps in a row without overflow so far."""
    skipped: int = 0
    """Steps that were skipped in all."""

    def may_step(self, squares: Tensor) -> bool:
        """Return whether gradients with this sum of squares are finite, and update the scale for the next
        step."""
        if not bool(torch.isfinite(squares)):
            self.value = max(1.0, self.value / 2)
            self.good_steps = 0
            self.skipped = self.skipped + 1
            return False
        self.good_steps += 1
        if self.good_steps == self.grows_after:
            self.value = self.value * 2
            self.good_steps = 0
        return True

    def state(self) -> dict[str, Tensor]:
        return {name: torch.tensor(float(getattr(self, name))) for name in ("value", "good_steps", "skipped")}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.value = float(state["value"])
        self.good_steps = int(state["good_steps"])
        self.skipped = int(state["skipped"])
