"""Effect of fewer bits on a loss curve, with a toy model."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.checks.small_models import pair, pool
from benchmarks.train_precision import PRECISIONS, Curve, compared, follow, learn
from millstream.train.parallel.precision import LossScale
from millstream.train.plan import StagePlan


@pytest.mark.slow
def test_every_precision_follows_the_curve_of_float32() -> None:
    plan = StagePlan(
        name="toy",
        method="flow",
        steps=6,
        batch=4,
        lr=3e-3,
        warm_up=2,
        ema=0.9,
        options={"window": 6, "whole": True},
    )
    curves = {precision: learn(pair(), pool(), plan, precision, 6) for precision in PRECISIONS}
    found = compared(curves)
    assert found["missed"] == []
    assert found["runs"]["fp32"]["most_percent"] == 0.0
    assert found["runs"]["fp16"]["most_percent"] > 0.0, "it was computed otherwise"
    assert curves["fp32"].losses[-1] != curves["fp32"].losses[0], "something was learnt"


def test_a_step_that_overflows_is_counted_and_not_followed() -> None:
    weight = torch.nn.Linear(2, 1)
    scale = LossScale(value=4.0)
    assert follow(weight(torch.ones(1, 2)).sum(), weight, scale)
    assert torch.equal(weight.weight.grad, torch.ones(1, 2)), "gradients are not scaled any more"
    assert not follow(weight(torch.full((1, 2), math.inf)).sum(), weight, scale)
    assert (scale.skipped, scale.value) == (1, 2.0)


def test_a_curve_that_ends_elsewhere_is_a_miss() -> None:
    found = compared({"fp32": Curve([1.0, 1.0], 1.0, 0, 1.0), "fp16": Curve([1.0, 1.1], 1.0, 0, 1.0)})
    assert found["missed"] == ["fp16"]
    assert found["runs"]["fp16"]["most_percent"] == pytest.approx(5.0)
