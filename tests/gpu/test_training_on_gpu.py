"""Optimisers and precisions of training on the card, against float32 and against the host. Skipped
elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from millstream.models.dit import CausalDiT
from millstream.ops.float8_product import float8_product
from millstream.ops.piecewise import PiecesBeside, TokenPiece, attend_beside, attend_pieces
from millstream.train.parallel.learner import Learner
from millstream.train.parallel.optimisers.choice import OptimiserChoice
from millstream.train.parallel.own_time import OwnTime
from millstream.train.parallel.plan import ParallelPlan
from millstream.train.parallel.task import FlowRows
from tests.soak.train_equality import batches
from tests.unit.models_for_tests import relative_error
from tests.unit.train.parallel.test_learner import CONFIG, learner

GPU = torch.device("cuda")
pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
        reason="needs a GPU that multiplies in fp8",
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the libraries that compile kernels
]


def rows(steps: int) -> Iterator[FlowRows]:
    for each in batches(CONFIG, 0, steps):
        yield FlowRows(*(tensor.to(GPU) for tensor in each[:4]))


def losses(taught: Learner, steps: int) -> list[float]:
    return [float(taught.learn(each).loss) for each in rows(steps)]


def test_products_on_the_card_are_those_of_the_same_numbers_in_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, wanted = (
        torch.randn(shape, generator=generator) for shape in ((3, 37, 64), (96, 64), (3, 37, 96))
    )
    found = list[list[torch.Tensor]]()
    for device in (GPU, torch.device("cpu")):
        given = [each.to(device, torch.bfloat16).requires_grad_() for each in (x, weight)]
        made = float8_product(*given)
        made.backward(wanted.to(device, torch.bfloat16))
        found.append([each.detach().cpu().float() for each in (made, *(given.grad for given in given))])
    for card, host in zip(*found, strict=True):
        assert relative_error(card, host) < 0.01


def test_fp8_follows_the_curve_of_float32() -> None:
    assert losses(learner(GPU, precision="fp8"), 20) == pytest.approx(losses(learner(GPU), 20), rel=0.03)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"state_bits": 8},
        {"offload": True},
        {"state_bits": 8, "offload": True},
        {"name": "muon"},
        {"name": "adafactor"},
    ],
)
def test_an_optimiser_on_the_card_follows_that_on_the_host_and_goes_on_to_the_same_bits(
    changed: dict[str, Any],
) -> None:
    choice = OptimiserChoice(**changed)
    whole = learner(GPU, ema=0.9, optimiser=choice)
    other = learner(GPU, ema=0.9, optimiser=choice)
    host = learner(ema=0.9, optimiser=choice)
    on_host = [float(host.learn(each).loss) for each in batches(CONFIG, 0, 3)]
    assert losses(whole, 3) == pytest.approx(on_host, rel=2e-3)
    kept = {
        state.name: {kind: value.cpu() for kind, value in state.tensors.items()} for state in whole.states()
    }
    other.load_state(kept.__getitem__)
    (last,) = rows(1)
    whole.learn(last)
    other.learn(last)
    ours = whole.weights()
    theirs = other.weights()
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


@pytest.mark.parametrize("unit", [252, 126])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_pieces_beside_each_other_are_those_of_the_host(unit: int, is_compiled: bool) -> None:
    """126 tokens are filled up with zeros, 252 are not."""
    pieces = [
        TokenPiece(slice(start, start + 252), (slice(0, start + 252),)) for start in range(0, 1260, 252)
    ]
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(2, 1260, 3, 64, generator=generator) for _ in range(3)]
    weights = torch.randn(2, 1260, 3, 64, generator=generator)
    found = list[list[torch.Tensor]]()
    beside = torch.compile(attend_beside, fullgraph=True) if is_compiled else attend_beside
    for device, dtype in ((GPU, torch.bfloat16), (torch.device("cpu"), torch.float32)):
        here = [each.to(device, dtype).requires_grad_() for each in given]
        out = beside(*here, PiecesBeside.of(pieces, unit)) if device == GPU else attend_pieces(*here, pieces)
        out.backward(weights.to(device, dtype))
        found.append([each.detach().cpu().float() for each in (out, *(tensor.grad for tensor in here))])
    for card, host in zip(*found, strict=True):
        assert relative_error(card, host) < 0.01


def test_adamw_is_fused() -> None:
    assert learner(GPU).optimiser.param_groups[0]["fused"]


def test_an_offloaded_optimiser_takes_no_memory_of_the_card() -> None:
    held = []
    for choice in (OptimiserChoice(), OptimiserChoice(offload=True)):
        before = torch.cuda.memory_allocated()
        taught = learner(GPU, optimiser=choice)
        losses(taught, 1)
        held.append(torch.cuda.memory_allocated() - before)
        weights = sum(parameter.numel() for parameter in CausalDiT(CONFIG).parameters())
        del taught
    assert held[0] - held[1] == pytest.approx(8 * weights, rel=0.2)


def test_own_time_is_measured_by_events() -> None:
    taught: Any = learner(GPU)
    own = OwnTime(taught._dit, ParallelPlan(), GPU)
    assert own.pop_mean() == 0.0
    losses(taught, 1)
    assert 0 < own.pop_mean() < 10
