"""The benchmark of recorded blocks in miniature: its ways compute the same, and each is timed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.recorded_blocks import COLD, WAYS, measure
from millstream.core.presets import MODELS
from millstream.models.fast import attention as fast_attention
from millstream.models.fast.stack import FastStack
from millstream.ops.waves import Waves

pytestmark = pytest.mark.slow

TINY = MODELS["wan-tiny"]


def test_every_way_is_timed_and_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    left = []
    asked = []
    walk = FastStack.walk

    def watched(blocks: FastStack, x_BFTD: Tensor, *rest: object) -> None:
        walk(blocks, x_BFTD, *rest)
        left.append(x_BFTD.float().clone())

    def waves(q_BLNH: Tensor, k_BWNH: Tensor) -> Waves:
        asked.append(q_BLNH.shape[1])
        return Waves(1, k_BWNH.shape[1])

    monkeypatch.setattr(FastStack, "walk", watched)
    monkeypatch.setattr(fast_attention, "waves_of", waves)
    found = measure(replace(TINY.dit, layers=2), TINY.stream, torch.device("cpu"), turns=3)
    assert found.keys() == WAYS.keys()
    assert all(each["us"] > 0 for each in found.values())
    assert found["one call, memsets"]["saved_us"] == 0
    assert asked, "two of the ways are in waves"
    assert len(left) == len(WAYS) * (1 + COLD + 3)
    assert all((each - left[0]).norm() <= 0.02 * left[0].norm() for each in left)
    assert not all(torch.equal(each, left[0]) for each in left), "waves round differently"
