"""A model that only ever saw true pasts trusts the past. Its own past has errors, it keeps them, and its
streams drift.

The world: a scene has a brightness, which stays. A prompt says it, vaguely; the frame before says it exactly.
A model weighs the two, and what it paints is off by a little, as samples are. Teacher forcing shows it true
frames as its past, self-forcing the frames that it painted itself.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from course.reader import Reader
from millstream.core.errors import CourseError

VAGUE = 0.3
OFF = 0.1
"""How far a prompt is from the scene, and a painted frame from what was meant, as standard deviations."""


class Streams(NamedTuple):
    scene_B: Tensor
    prompt_B: Tensor
    off_TB: Tensor


def run(reader: Reader, learn: int = 200, unroll: int = 16, length: int = 200) -> None:
    """`learn` steps of learning, on `unroll` frames each; then streams of `length` frames."""
    if min(learn, unroll, length) < 10:
        raise CourseError(
            f"--learn, --unroll and --length must be 10 or more, got {learn}, {unroll} and {length}"
        )
    forced, own = (_learnt(learn, unroll, is_own) for is_own in (False, True))
    errors = {
        name: _errors(model, length) for name, model in (("teacher forcing", forced), ("self-forcing", own))
    }
    for (name, found), model in zip(errors.items(), (forced, own), strict=True):
        past, prompt = model.weight[0].tolist()
        later = f"off by {found[0]:.2f}, {found[9]:.2f}, {found[-1]:.2f} in frames 1, 10, {length}"
        reader.measured(f"{name:16} trusts the past {past:.2f}, the prompt {prompt:.2f}; {later}")
    reader.say(
        "symptom: the loss of teacher forcing is as small as it can be, and its streams walk away from the "
        "prompt"
    )
    assert forced.weight[0, 0] > 0.95, f"{forced.weight}"
    assert errors["teacher forcing"][0] <= errors["self-forcing"][0], "with a true past it is the better one"
    assert errors["self-forcing"][-1] < 0.5 * errors["teacher forcing"][-1], "with its own it is not"
    reader.say("tool: stream for longer than it was taught, and plot against time what should stay")
    reader.say("fix: roll the model out while it learns, and judge what came out: train.distil.self_forcing")


def _learnt(steps: int, unroll: int, is_own: bool) -> nn.Linear:
    torch.manual_seed(0)
    model = nn.Linear(2, 1, bias=False)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-2)
    for step in range(steps):
        streams = _streams(unroll, seed=step)
        before = streams.scene_B
        losses = list[Tensor]()
        for off_B in streams.off_TB:
            painted = model(torch.stack([before, streams.prompt_B], dim=-1))[:, 0] + off_B
            losses.append((painted - streams.scene_B).square().mean())
            before = painted if is_own else streams.scene_B
        optimiser.zero_grad()
        torch.stack(losses).mean().backward()
        optimiser.step()
    return model


@torch.no_grad()
def _errors(model: nn.Linear, length: int) -> list[float]:
    """Return the mean error of every frame of streams that continue from their own frames."""
    streams = _streams(length, seed=1_000_000)
    before = streams.scene_B
    found = list[float]()
    for off_B in streams.off_TB:
        before = model(torch.stack([before, streams.prompt_B], dim=-1))[:, 0] + off_B
        found.append(float((before - streams.scene_B).abs().mean()))
    return found


def _streams(frames: int, seed: int, count: int = 256) -> Streams:
    generator = torch.Generator().manual_seed(seed)
    scene_B = torch.randn(count, generator=generator)
    prompt_B = scene_B + VAGUE * torch.randn(count, generator=generator)
    return Streams(scene_B, prompt_B, OFF * torch.randn(frames, count, generator=generator))
