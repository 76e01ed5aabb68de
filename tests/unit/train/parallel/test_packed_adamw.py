"""AdamW with moments in eight bits: how far a code is from its number, and how far a run is from AdamW's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from millstream.train.parallel.optimisers import packed_adamw
from millstream.train.parallel.optimisers.packed_adamw import (
    BLOCK,
    POSITIVE,
    SIGNED,
    PackedAdamW,
    decode,
    encode,
    thresholds,
)


def numbers(count: int, levels: int) -> Tensor:
    """Of very different sizes."""
    generator = torch.Generator().manual_seed(count)
    found = torch.randn(count, generator=generator) * 10 ** (torch.rand(count, generator=generator) * 8 - 8)
    found[::7] = 0.0
    return found.square() if levels == POSITIVE else found


@pytest.mark.parametrize("levels", [SIGNED, POSITIVE])
@pytest.mark.parametrize("count", [1, BLOCK, 5 * BLOCK + 3])
@pytest.mark.parametrize("step", [None, 1, 12345])
def test_a_code_is_less_than_a_level_away_from_its_number(levels: int, count: int, step: int | None) -> None:
    x = numbers(count, levels)
    threshold = 0.5 if step is None else thresholds(0, -(-count // BLOCK), step, x.device)
    codes, scale = encode(x, levels, threshold)
    found = decode(codes, scale, levels)
    assert codes.element_size() == 1
    assert torch.equal(found.sign(), x.sign()) or levels == SIGNED
    scales = scale.repeat_interleave(BLOCK)[:count]
    larger = torch.maximum(found.abs(), x.abs())
    bound = 4 / levels * scales**0.25 * larger**0.75
    assert ((found - x).abs() <= 1.001 * bound + 1e-30).all()
    assert (found[x == 0] == 0).all()


@pytest.mark.parametrize("levels", [SIGNED, POSITIVE])
def test_what_was_decoded_gives_the_same_codes(levels: int) -> None:
    codes, scale = encode(numbers(3 * BLOCK + 5, levels), levels)
    again, same_scale = encode(decode(codes, scale, levels), levels)
    assert torch.equal(codes, again)
    assert torch.equal(scale, same_scale)


def test_a_moment_that_changes_little_in_a_step_changes_over_many() -> None:
    x = torch.full((BLOCK,), 0.37)
    blocks = 1
    x[0] = 1.0  # sets the scale
    codes, scale = encode(x, POSITIVE)
    for step in range(1, 201):
        moved = decode(codes, scale, POSITIVE)
        moved[1:] *= 0.995
        codes, scale = encode(moved, POSITIVE, thresholds(0, blocks, step, x.device))
    assert decode(codes, scale, POSITIVE)[1:].mean() == pytest.approx(0.37 * 0.995**200, rel=0.02)


def descend(make: type[torch.optim.Optimizer], steps: int) -> tuple[list[float], Tensor]:
    """A regression whose inputs have very different sizes."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 8))
    inputs = torch.randn(256, 40) * torch.logspace(-1, 1, 40)
    wanted = torch.tanh(inputs @ torch.randn(40, 8) * 0.1)
    optimiser = make(layers.parameters(), lr=3e-3, weight_decay=0.01, betas=(0.9, 0.99))  # type: ignore[call-arg]
    losses = list[float]()
    for step in range(steps):
        rows = torch.arange(64) + 64 * (step % 4)
        loss = (layers(inputs[rows]) - wanted[rows]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses, torch.cat([parameter.detach().flatten() for parameter in layers.parameters()])


def test_it_follows_adamw() -> None:
    """Losses within 3%, and weights within 8% of the way that AdamW went."""
    losses, weights = descend(torch.optim.AdamW, 120)
    packed_losses, packed = descend(PackedAdamW, 120)
    _, begun = descend(torch.optim.AdamW, 0)
    assert losses[-1] < 0.2 * losses[0]
    assert packed_losses == pytest.approx(losses, rel=0.03)
    assert (packed - weights).norm() < 0.08 * (weights - begun).norm()


def test_slices_of_a_parameter_are_stepped_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = descend(PackedAdamW, 5)
    monkeypatch.setattr(packed_adamw, "AT_ONCE", 2 * BLOCK)
    assert descend(PackedAdamW, 5)[0] == whole[0]
