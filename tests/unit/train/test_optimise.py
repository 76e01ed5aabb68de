"""What turns gradients into weights: Muon and learning rates."""

from __future__ import annotations

import pytest
import torch

from millstream.train.optimise import Average, learning_rate
from millstream.train.parallel.optimisers.muon import Muon
from tests.unit.models_for_tests import relative_error
from tests.unit.toy_training import stage


def test_muon_takes_the_steps_of_the_librarys() -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((8, 12), (8, 12), (12, 8), (6, 6))]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    start = [parameter.detach().clone() for parameter in ours]
    mine = Muon(ours, lr=0.01, weight_decay=0.1)
    library = torch.optim.Muon(theirs, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        mine.step()
        library.step()
    for one, other, before in zip(ours, theirs, start, strict=True):
        assert (
            relative_error(one.detach() - before, other.detach() - before) < 0.08
        )  # of the way; both iterate in bfloat16


def test_muon_takes_gradients_from_a_closure_and_says_its_loss() -> None:
    plain, closed = (torch.nn.Parameter(torch.eye(4)) for _ in range(2))
    plain.square().sum().backward()
    Muon([plain], lr=0.01).step()

    def loss() -> float:
        found = closed.square().sum()
        found.backward()
        return float(found.detach())

    assert Muon([closed], lr=0.01).step(loss) == 4.0
    assert torch.equal(plain, closed)


def test_learning_rates_rise_then_fall_or_stay() -> None:
    cosine = stage(100, warm_up=10)
    constant = stage(100, warm_up=10, schedule="constant")
    assert learning_rate(cosine, 0) < learning_rate(cosine, 9)
    assert learning_rate(cosine, 99) < 0.02 * cosine.lr
    assert learning_rate(constant, 99) == constant.lr
    longer = stage(200, warm_up=10)
    assert (
        learning_rate(stage(100, warm_up=10, cosine_over=200), 99)
        == learning_rate(longer, 99)
        > 0.4 * longer.lr
    )


def test_an_average_keeps_most_of_what_it_was_and_young_ones_follow_more_closely() -> None:
    """By hand, of a weight that is its step's number."""
    module = torch.nn.Linear(1, 1, bias=False)
    expected = 0.0
    torch.nn.init.zeros_(module.weight)
    average = Average(module, decay=0.5)
    for step in range(20):
        torch.nn.init.constant_(module.weight, step + 1.0)
        average.update(module, step)
        keep = min(0.5, (1 + step) / (10 + step))
        expected = keep * expected + (1 - keep) * (step + 1.0)
        assert float(average.module.weight.detach()) == pytest.approx(expected, rel=1e-5)
    assert 18.9 < expected < 19.1, "half of what it was is a step behind"
