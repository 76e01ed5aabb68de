"""Chapter 6, exercises. Fill in the functions, then run `millstream course check 6`."""

from __future__ import annotations

from torch import Tensor


def shared_mlp(
    x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor, rank: int, world: int
) -> Tensor:
    """gelu(x @ up.T + up_bias) @ down.T + down_bias, of which this rank may only use its share of hidden
    units.

    All weights come whole: take your share of them first. One all-reduce; every rank returns the whole
    output.
    """
    raise NotImplementedError("shared_mlp")


def sums_mb(layers: int, tokens: int, width: int) -> float:
    """Megabytes that all sums of one model call carry together: two sums a block, bf16."""
    raise NotImplementedError("sums_mb")
