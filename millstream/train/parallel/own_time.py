"""Time that a rank itself takes for its part of the model, without waiting for others.

Ranks of a step end together, so a step's time says nothing about one of them. The time of a block's forward
pass is measured, which begins when its weights are there; where ranks communicate inside a block, that of the
matmul with the most numbers in it. On a GPU it is measured by events, without waiting for them.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from millstream.models.dit import CausalDiT
from millstream.train.parallel.plan import ParallelPlan


class OwnTime:
    def __init__(self, dit: CausalDiT, plan: ParallelPlan, device: torch.device) -> None:
        """Add timing hooks to a DiT that is shared out already."""
        self._on_gpu = device.type == "cuda"
        self._spans = list[tuple[Any, Any]]()
        self._begun: Any = None
        for block in dit.blocks:
            timed: nn.Module = block.ffn.up if plan.tp > 1 or plan.cp > 1 else block
            timed.register_forward_pre_hook(self._begin)
            timed.register_forward_hook(self._end)

    def pop_mean(self) -> float:
        """Return the mean seconds of a call since the last `pop_mean`; 0 if there was none."""
        spans = self._spans
        self._spans = []
        if self._on_gpu and spans:
            spans[-1][1].synchronize()
            seconds = [begun.elapsed_time(ended) / 1000 for begun, ended in spans]
        else:
            seconds = [ended - begun for begun, ended in spans]
        return sum(seconds) / len(seconds) if seconds else 0.0

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _begin(self, *_: Any) -> None:
        self._begun = self._now()

    def _end(self, *_: Any) -> None:
        assert self._begun is not None, "a call ended that had not begun"
        self._spans.append((self._begun, self._now()))
