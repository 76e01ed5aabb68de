"""Scores of an attention overflow in float16, a softmax of infinities is no number, and one step later no
weight is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from course.reader import Reader
from millstream.train.finetune.guard import SpikeGuard

TOKENS = 4
WIDTH = 64
LARGEST = torch.finfo(torch.float16).max


class Scores(nn.Module):
    def forward(self, q: Tensor, k: Tensor, *, scaled_first: bool) -> Tensor:
        root = math.sqrt(WIDTH)
        return (q / root) @ k.T if scaled_first else q @ k.T / root


class SmallAttention(nn.Module):
    def __init__(self, *, is_mended: bool) -> None:
        super().__init__()
        self.is_mended = is_mended
        self.scores = Scores()
        self.softmax = nn.Softmax(dim=-1)
        torch.manual_seed(0)
        self.value = nn.Linear(WIDTH, WIDTH, dtype=torch.float16)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.softmax(self.scores(x, x, scaled_first=self.is_mended)) @ self.value(x / 64)
        return made


def run(reader: Reader, size: float = 60.0) -> None:
    x = torch.full((TOKENS, WIDTH), size, dtype=torch.float16)
    reader.say(
        f"{WIDTH} products of {size:g} times {size:g} add up to {WIDTH * size**2:g}; float16 ends at "
        f"{LARGEST:.0f}"
    )
    first = _learnt(x, is_mended=False, is_guarded=False)
    guarded = _learnt(x, is_mended=False, is_guarded=True)
    mended = _learnt(x, is_mended=True, is_guarded=False)
    assert first.isnan == [True, True], f"{first.isnan}"
    assert first.broken_at == "scores", f"the first that is no number comes from {first.broken_at}"
    reader.say("symptom: the loss is nan, and after one step every weight that learns is nan too")
    reader.say(f"tool: look at every module's output; the first that is not finite is {first.broken_at!r}")
    assert guarded.isnan == [True, False], f"{guarded.isnan}"
    reader.say("tool: train.tuning.guard leaves such a step out: the loss is nan, the weights are not")
    assert mended.isnan == [False, False], f"{mended.isnan}"
    assert not mended.broken_at, f"{mended.broken_at} is not finite"
    reader.say(
        "fix: divide before the product, not after it; or products in bfloat16, and softmax in float32 as "
        "attention kernels do"
    )


@dataclass(slots=True)
class OneStep:
    isnan: list[bool] = field(default_factory=list)
    """The loss, and the weights after a step."""
    broken_at: str = ""
    """The first module whose output is not finite."""


def _learnt(x: Tensor, *, is_mended: bool, is_guarded: bool) -> OneStep:
    model = SmallAttention(is_mended=is_mended)
    found = OneStep()
    guard = SpikeGuard(0)

    def look(name: str, output: Tensor) -> None:
        if not found.broken_at and not bool(output.isfinite().all()):
            found.broken_at = name

    for name, module in model.named_children():
        module.register_forward_hook(lambda _, __, output, name=name: look(name, output))
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss = model(x).float().square().mean()
    loss.backward()
    norm = torch.stack([_norm(each) for each in model.parameters()]).norm()
    if not is_guarded or guard.may_step(norm.item()):
        optimiser.step()
    found.isnan = [loss.isnan().item(), any(bool(each.isnan().any()) for each in model.parameters())]
    return found


def _norm(parameter: Any) -> Tensor:
    norm: Tensor = parameter.grad.float().norm()
    return norm
