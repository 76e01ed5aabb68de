"""A learner by itself: what precision changes, and what it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from millstream.models.dit import CausalDiT
from millstream.train.parallel.groups import create_training_groups
from millstream.train.parallel.learner import Learner, make_learner
from millstream.train.parallel.optimisers.choice import OptimiserChoice
from millstream.train.parallel.optimisers.own import WEIGHT
from millstream.train.parallel.plan import ParallelPlan
from millstream.train.parallel.states import AVERAGE
from millstream.train.parallel.task import StepOptions, TrainingTask
from millstream.train.sequence import ChunkedSequence, diffusion_forced
from tests.soak.train_equality import (
    CHUNKS,
    FRAMES_PER_CHUNK,
    LATENT_SIZE,
    MODELS,
    WINDOW,
    batches,
    mean_square,
)

pytestmark = pytest.mark.slow  # it trains
CONFIG = MODELS["tiny"]
CPU = torch.device("cpu")


def learner(device: torch.device = CPU, **options: object) -> Learner:
    torch.manual_seed(0)
    layout = diffusion_forced(CHUNKS, FRAMES_PER_CHUNK, WINDOW)
    return make_learner(
        TrainingTask(
            dit=CausalDiT(CONFIG).to(device),
            sequence=ChunkedSequence(layout, CONFIG, LATENT_SIZE, device),
            latent_size=LATENT_SIZE,
            loss=mean_square,
            plan=ParallelPlan(),
            groups=create_training_groups(ParallelPlan(), device),
            options=StepOptions(**options),  # type: ignore[arg-type]
        )
    )


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_fewer_bits_follow_the_curve_of_float32(precision: str) -> None:
    """Few steps: some CPUs have to emulate them."""
    plain = learner()
    short = learner(precision=precision)
    for rows in batches(CONFIG, 0, 2):
        assert float(short.learn(rows).loss) == pytest.approx(float(plain.learn(rows).loss), rel=0.02)
    assert all(weight.dtype == torch.float32 for weight in short.weights().values())


def test_what_float32_is_needed_for_stays_in_it() -> None:
    taught = learner(precision="fp16")
    found = dict[str, set[torch.dtype]]()

    def note(name: str) -> Callable[..., None]:
        return lambda _, __, given: found.setdefault(name, set()).add(given.dtype)

    block = taught._dit.blocks[1]  # type: ignore[attr-defined]
    block.register_forward_hook(note("sum"))
    block.ffn.up.register_forward_hook(note("product"))
    (rows,) = batches(CONFIG, 0, 1)
    learnt = taught.learn(rows)
    assert found == {"sum": {torch.float32}, "product": {torch.float16}}
    assert {learnt.loss.dtype, learnt.norm.dtype} == {torch.float32}
    kept = [value for state in taught.states() for value in state.tensors.values()]
    assert {value.dtype for value in kept} == {torch.float32}


def test_a_spike_is_left_out_in_float16_and_an_overflow_is_not_called_one() -> None:
    taught = learner(precision="fp16")
    asked = list[float]()
    assert taught.loss_scale is not None

    def never(norm: float) -> bool:
        asked.append(norm)
        return False

    first, second = batches(CONFIG, 0, 2)
    assert not taught.learn(first, never).taken
    taught.loss_scale.value = 2.0**60
    assert not taught.learn(second, never).taken
    assert len(asked) == 1
    assert taught.loss_scale.skipped == 1


def test_an_optimiser_in_host_memory_does_the_same_bits() -> None:
    here = learner(ema=0.9)
    there = learner(ema=0.9, optimiser=OptimiserChoice(offload=True))
    for rows in batches(CONFIG, 0, 3):
        assert torch.equal(here.learn(rows).loss, there.learn(rows).loss)
    for kind in (WEIGHT, AVERAGE):
        ours = here.weights(kind)
        theirs = there.weights(kind)
        assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


@pytest.mark.parametrize(
    "changed", [{"state_bits": 8}, {"offload": True}, {"state_bits": 8, "offload": True}]
)
def test_a_learner_goes_on_to_the_same_bits_from_what_its_optimiser_kept(changed: dict[str, Any]) -> None:
    choice = OptimiserChoice(**changed)
    whole = learner(ema=0.9, optimiser=choice)
    other = learner(ema=0.9, optimiser=choice)
    first, second, third = batches(CONFIG, 0, 3)
    whole.learn(first)
    whole.learn(second)
    kept = {state.name: dict(state.tensors) for state in whole.states()}
    assert all(value.dtype == torch.float32 for state in kept.values() for value in state.values())
    other.load_state(kept.__getitem__)
    assert torch.equal(whole.learn(third).loss, other.learn(third).loss)
    ours = whole.weights()
    theirs = other.weights()
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


def test_eight_bits_follow_the_curve_of_thirty_two() -> None:
    plain = learner()
    packed = learner(optimiser=OptimiserChoice(state_bits=8))
    for rows in batches(CONFIG, 0, 12):
        assert float(packed.learn(rows).loss) == pytest.approx(float(plain.learn(rows).loss), rel=0.01)


def test_a_step_that_does_not_fit_float16_changes_nothing_and_is_counted() -> None:
    taught = learner(precision="fp16")
    assert taught.loss_scale is not None
    taught.loss_scale.value = 2.0**60
    before, (first, second) = taught.weights(), batches(CONFIG, 0, 2)
    taught.learn(first)
    assert (taught.loss_scale.skipped, taught.loss_scale.value) == (1, 2.0**59)
    assert all(torch.equal(weight, before[name]) for name, weight in taught.weights().items())
    taught.loss_scale.value = 2.0**10
    taught.learn(second)
    assert any(not torch.equal(weight, before[name]) for name, weight in taught.weights().items())


def test_an_average_is_that_of_all_weights_so_far_and_young_ones_follow_more_closely() -> None:
    """By hand, from the weights after each step."""
    taught = learner(ema=0.15)
    most = 0.15
    expected: dict[str, torch.Tensor] = {}
    for number, rows in enumerate(batches(CONFIG, 0, 4), start=1):
        taught.learn(rows)
        weights = {name: weight.clone() for name, weight in taught.weights().items()}
        keep = min(most, number / (9 + number))
        expected = {
            name: keep * expected.get(name, weight) + (1 - keep) * weight for name, weight in weights.items()
        }
    found = taught.weights(AVERAGE)
    for name, average in expected.items():
        torch.testing.assert_close(found[name], average, rtol=1e-5, atol=1e-7)
    assert any(
        not torch.allclose(found[name], weight, rtol=1e-4, atol=1e-7) for name, weight in weights.items()
    )


def test_gradients_are_scaled_down_to_the_largest_norm_and_never_up() -> None:
    for norm, expected in ((4.0, 0.5), (0.5, 0.5), (0.1, 0.1)):
        factor = StepOptions(grad_clip=0.5).clip_factor(torch.tensor(norm**2))
        assert float(factor) * norm == pytest.approx(expected, rel=1e-4)
