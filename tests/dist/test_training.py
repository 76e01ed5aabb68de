"""However training is shared out, it learns what one process learns; `tests/soak/train_equality.py` has every
strategy."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from millstream.core.errors import UnusedParameters
from millstream.train.parallel.groups import create_training_groups
from millstream.train.parallel.plan import ParallelPlan
from millstream.train.parallel.replicas import Replicas
from millstream.train.parallel.zero import Stage, Unit, Zero
from tests.dist.ranks import run_on_kept_ranks
from tests.soak.train_equality import STRATEGIES, Trained, difference, train

STEPS = 3
CHOSEN = [
    "own data parallel, accumulated", "DDP", "ZeRO 1", "ZeRO 2", "ZeRO 3, accumulated", "HSDP", "tensor parallel",
    "pipeline, 1F1B", "pipeline, ZB-V", "2D, ZeRO 3 x context", "2D, FSDP2 x tensor", "3D, pipeline x data x tensor",
]  # fmt: skip


@functools.cache
def alone(model: str) -> Trained:
    return train(0, model, ParallelPlan(), STEPS)


@pytest.mark.parametrize("name", CHOSEN)
def test_losses_and_weights_are_those_of_one_process(name: str) -> None:
    plan = STRATEGIES[name]
    model = "two-blocks" if plan.pp == 1 else "tiny"
    for found in run_on_kept_ranks(train, plan.world_size, model, plan, STEPS):
        assert difference(found, alone(model)) < 1e-5
    assert alone(model).losses[-1] < alone(model).losses[0]


@pytest.mark.parametrize(
    "name",
    [
        "own data parallel, accumulated",
        "ZeRO 3, accumulated",
        "HSDP",
        "2D, ZeRO 3 x context",
        "tensor parallel",
    ],
)
def test_what_keys_do_is_learnt_as_by_one_process(name: str) -> None:
    plan = STRATEGIES[name]
    expected = train(0, "two-blocks", ParallelPlan(), STEPS, steered=True)
    learnt = functools.partial(train, steered=True)
    for found in run_on_kept_ranks(learnt, plan.world_size, "two-blocks", plan, STEPS):
        assert difference(found, expected) < 1e-5
    assert expected.weights["injectors.actions.down.weight"].abs().max() > 0


class Layers(nn.Module):
    """Four products, and one that nothing uses if so asked."""

    def __init__(self, *, unused: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.register_buffer("seen", torch.zeros(1))
        if unused:
            self.idle = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.silu(layer(x))
        return x


def mean_gradients(weights: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Compute the gradients of the mean loss over all ranks' inputs, by plain autograd."""
    module = Layers()
    with torch.no_grad():
        for parameter, weight in zip(module.parameters(), weights, strict=True):
            parameter.copy_(weight)
    torch.stack([module(x).square().sum() for x in inputs]).mean().backward()
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def _replicated(rank: int) -> dict[str, Any]:
    torch.manual_seed(rank)
    module = Layers()
    groups = create_training_groups(ParallelPlan(dp=2), torch.device("cpu"))
    replicas = Replicas(module, groups.batch, bucket_bytes=8 * 9 * 4)
    begun = list[int]()

    def count(_: torch.Tensor) -> None:
        begun.append(groups.batch.record.counts["sum", "gradients"])

    module.layers[0].bias.register_post_accumulate_grad_hook(count)
    started = [parameter.detach().clone() for parameter in module.parameters()]
    module(torch.full((3, 8), float(rank))).square().sum().backward()
    module.seen.fill_(rank + 5.0)
    replicas.finish()
    return dict(
        started=started,
        gradients=[parameter.grad for parameter in module.parameters()],
        expected=mean_gradients(started, [torch.full((3, 8), float(each)) for each in range(2)]),
        begun_before_the_first_layer=begun[0],
        buckets=groups.batch.record.counts["sum", "gradients"],
        seen=float(module.seen),
    )


def test_copies_begin_alike_and_sum_gradients_while_the_backward_pass_goes_on() -> None:
    first, second = run_on_kept_ranks(_replicated, 2)
    assert all(map(torch.equal, first["started"], second["started"])), "the first rank's"
    assert all(map(torch.equal, first["gradients"], second["gradients"]))
    for found, expected in zip(first["gradients"], first["expected"], strict=True):
        torch.testing.assert_close(found, expected)  # the mean of both ranks' and not their sum
    assert first["buckets"] == 4
    assert first["begun_before_the_first_layer"] >= 2, "later layers' gradients were under way"
    assert (first["seen"], second["seen"]) == (5.0, 5.0)


def adamw(units: Sequence[Unit]) -> torch.optim.Optimizer:
    return torch.optim.AdamW([unit.mine for unit in units])


def _sharded(rank: int, stage: Stage) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Gradients as ranks hold them together, and as they should be."""
    torch.manual_seed(0)
    module = Layers()
    groups = create_training_groups(ParallelPlan(dp=2), torch.device("cpu"))
    weights = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    inputs = [torch.full((3, 8), 1.0 + each) for each in range(2)]
    expected = dict(zip(weights, mean_gradients(list(weights.values()), inputs), strict=True))
    zero = Zero(module, groups.batch, stage, adamw, units=list(module.layers))
    module(inputs[rank]).square().sum().backward()
    zero.finish()
    found = list[tuple[torch.Tensor, torch.Tensor]]()
    for unit in zero.units:
        assert unit.mine.grad is not None
        whole_N = unit.whole(unit.mine.grad)
        found += [(place.of(whole_N), expected[name]) for name, place in unit.places()]
    return found


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sharded_gradients_are_the_mean_over_the_ranks(stage: Stage) -> None:
    for pairs in run_on_kept_ranks(_sharded, 2, stage):
        assert len(pairs) == 8
        for found, expected in pairs:
            torch.testing.assert_close(found, expected)


def _unused(rank: int, zero: bool) -> str:
    module = Layers(unused=True)
    groups = create_training_groups(ParallelPlan(dp=2), torch.device("cpu"))
    shared = (
        Zero(module, groups.batch, 2, adamw, units=list(module.layers))
        if zero
        else Replicas(module, groups.batch, bucket_bytes=64)
    )
    module(torch.ones(1, 8)).sum().backward()
    try:
        shared.finish()
    except UnusedParameters as error:
        return str(error)
    return ""


@pytest.mark.parametrize("zero", [False, True])
def test_parameters_that_nothing_uses_are_named(zero: bool) -> None:
    for said in run_on_kept_ranks(_unused, 2, zero):
        assert said == "no gradient reached idle.weight, idle.bias: use them in the loss or freeze them"


def _held(rank: int, stage: int) -> dict[str, float]:
    module = Layers()
    groups = create_training_groups(ParallelPlan(dp=4), torch.device("cpu"))
    zero = Zero(module, groups.batch, stage, adamw, units=list(module.layers))  # type: ignore[arg-type]
    module(torch.ones(1, 8)).sum().backward()
    zero.finish()
    gradients = sum(parameter.grad.numel() for parameter in module.parameters() if parameter.grad is not None)
    gradients += sum(unit.mine.grad.numel() for unit in zero.units)
    zero.step()
    states = sum(
        each.numel() for state in zero.optimiser.state.values() for each in state.values() if each.ndim
    )
    storages = {parameter.untyped_storage() for parameter in module.parameters()}
    weights = sum(storage.nbytes() // 4 for storage in {each.data_ptr(): each for each in storages}.values())
    weights += sum(unit.mine.numel() for unit in zero.units) if stage == 3 else 0
    return dict(weights=weights, gradients=gradients, states=states)


@pytest.mark.parametrize(("stage", "weights", "gradients"), [(1, 1, 4), (2, 1, 4), (3, 4, 4)])
def test_each_stage_holds_a_part_of_what_it_shards(stage: int, weights: int, gradients: int) -> None:
    count = sum(parameter.numel() for parameter in Layers().parameters())
    for held in run_on_kept_ranks(_held, 4, stage):
        assert held["states"] == 2 * count / 4
        assert held["weights"] == pytest.approx(count / weights, rel=0.01)
        assert held["gradients"] == pytest.approx(count / gradients, rel=0.01)
