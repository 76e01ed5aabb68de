"""Collectives that gradients flow back through, so that what is shared out for streaming learns as it is.

Each has one rule for the way back, which follows from the use of the result:

    forward              backward                    used where
    sum                  nothing: all got the same   a block's output, which all ranks go on with
    sum_for_parts        sum                         a norm's total, of which each rank makes its own part
    nothing (`share`)    sum                         a block's input, which each rank uses for its part
    exchange             exchange back               tokens for heads
    collect              this rank's own slice       a whole that all ranks judge alike
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from millstream.parallel.collectives import PendingCollective, RankGroup


class GradientGroup(RankGroup):
    """Group of ranks whose collectives pass gradients back."""

    def sum(self, x: Tensor, what: str) -> Tensor:
        return _apply(_Sum, x, self, what)

    def sum_for_parts(self, x: Tensor, what: str) -> Tensor:
        return _apply(_SumForParts, x, self, what)

    def share(self, x: Tensor, what: str) -> Tensor:
        """Return `x` as it is; its gradient is the sum over all ranks, since each of them uses it."""
        return _apply(_Share, x, self, what)

    def start_exchange(self, parts: Tensor, what: str) -> PendingCollective:
        return PendingCollective(_apply(_Exchange, parts, self, what))

    def collect(self, x: Tensor, what: str) -> Tensor:
        return _apply(_Collect, x, self, what)


def _apply(function: type[torch.autograd.Function], x: Tensor, group: GradientGroup, what: str) -> Tensor:
    found: Tensor = function.apply(x, group, what)
    return found


def _summed(x: Tensor, group: RankGroup, what: str) -> Tensor:
    return RankGroup.sum(group, x.contiguous().clone(), what)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: RankGroup, what: str) -> Tensor:
        return _summed(x, group, what)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient, None, None


class _SumForParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: RankGroup, what: str) -> Tensor:
        ctx.of = group, what
        return _summed(x, group, what)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _summed(gradient, *ctx.of), None, None


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: RankGroup, what: str) -> Tensor:
        ctx.of = group, what
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _summed(gradient, *ctx.of), None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: RankGroup, what: str) -> Tensor:
        ctx.of = group, what
        return RankGroup.start_exchange(group, parts, what).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        group, what = ctx.of
        return RankGroup.start_exchange(group, gradient, what).wait(), None, None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: RankGroup, what: str) -> Tensor:
        ctx.place = group.place
        return RankGroup.collect(group, x, what)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.place], None, None
