"""Lab 04, what is asked of an answer."""

from __future__ import annotations

import math
from types import ModuleType

import torch
from torch import nn

TINY = 1e-9
"""A gradient that float16 has no number for."""
WIDE = 300.0
"""Its square is more than float16 can hold."""
UPDATES = 200
UPDATE = 1e-4
OFF = 1e-4
"""Largest error of a weight, as a share of it."""


def judge_milestone_1_you_know_what_survives(answer: ModuleType) -> None:
    """Convert and look: a number is lost as zero or as infinity. torch.finfo says the ranges."""
    for value, dtype, kept in (
        (TINY, torch.float16, False),
        (TINY, torch.bfloat16, True),
        (1e5, torch.float16, False),
        (1e5, torch.bfloat16, True),
        (1e-7, torch.float16, True),
        (1e-30, torch.bfloat16, True),
        (1e-30, torch.float32, True),
    ):
        assert answer.survives(value, dtype) is kept, f"{value} in {dtype}: {answer.survives(value, dtype)}"


def judge_milestone_2_a_norm_does_not_overflow(answer: ModuleType) -> None:
    """Square and add up in float32; convert what comes out."""
    for dtype in (torch.float16, torch.bfloat16):
        found = answer.root_mean_square(torch.full((2, 512), WIDE, dtype=dtype))
        assert found.dtype == dtype, f"the result is in {found.dtype}"
        assert found.shape == (2,), f"the result has shape {tuple(found.shape)}"
        assert torch.allclose(found.float(), torch.full((2,), WIDE), rtol=1e-2), (
            f"{WIDE:g} everywhere gives {found.tolist()}"
        )


def judge_milestone_3_gradients_below_float16_move_weights(answer: ModuleType) -> None:
    """loss * scale before backward, gradients / scale after it and before the optimiser's step."""
    weight = nn.Parameter(torch.ones(()))
    x = torch.tensor(TINY)
    scaler = answer.LossScaler()
    optimiser = torch.optim.SGD([weight], lr=1e6)
    small = torch.autograd.grad(scaler.scaled(weight * x), weight)[
        0
    ].half()  # as a backward pass in float16 would leave it
    weight.grad = small.float()
    assert scaler.step(optimiser), "the step was left out"
    assert math.isclose(weight.item(), 1 - 1e6 * TINY, rel_tol=OFF), f"the weight is {weight.item()}"


def judge_milestone_4_an_overflow_is_left_out_and_halves_the_scale(answer: ModuleType) -> None:
    """Look at all gradients with isfinite before you change anything. Count good steps in a row, from 0 after
    an overflow."""
    weight = nn.Parameter(torch.ones(2))
    scaler = answer.LossScaler(1024.0, grows_after=2)
    optimiser = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.tensor([math.inf, 1.0])
    assert not scaler.step(optimiser), "a step with an infinite gradient was made"
    assert weight.tolist() == [1, 1], f"the weight became {weight.tolist()}"
    assert scaler.value == 512, f"the scale is {scaler.value} after an overflow at 1024"
    for _ in range(2):
        weight.grad = torch.full((2,), 512.0)
        assert scaler.step(optimiser), "a good step was left out"
    assert weight.tolist() == [-1, -1], f"two steps of 1 from 1 came to {weight.tolist()}"
    assert scaler.value == 1024, f"the scale is {scaler.value} after two good steps at 512"


def judge_milestone_5_small_updates_add_up(answer: ModuleType) -> None:
    """Just below 1 the numbers of bfloat16 are further apart than such an update: keep the sum in float32 and
    copy_ it over."""
    weight = nn.Parameter(torch.ones((), dtype=torch.bfloat16))
    masters = answer.MasterWeights([weight], lr=UPDATE)
    for _ in range(UPDATES):
        weight.grad = torch.ones((), dtype=torch.bfloat16)
        masters.step()
    assert weight.dtype == torch.bfloat16, f"the parameter became {weight.dtype}"
    assert abs(weight.item() - (1 - UPDATES * UPDATE)) < 0.004, (
        f"{UPDATES} updates of {UPDATE} came to {weight.item()}"
    )
