"""A learner by itself: what precision changes, and what it must not."""

from __future__ import annotations

import pytest
import torch

from benchmarks.train_equality import CHUNKS, FRAMES_PER_CHUNK, LATENT_SIZE, MODELS, WINDOW, batches, mean_square
from millstream.models.dit import CausalDiT
from millstream.parallel.training.groups import create_training_groups
from millstream.parallel.training.learner import Learner, StepOptions, TrainingTask, make_learner
from millstream.parallel.training.plan import ParallelPlan
from millstream.trainer.sequence import ChunkedSequence, diffusion_forced

CONFIG = MODELS["tiny"]


def learner(**options: object) -> Learner:
    torch.manual_seed(0)
    layout = diffusion_forced(CHUNKS, FRAMES_PER_CHUNK, WINDOW)
    return make_learner(
        TrainingTask(
            dit=CausalDiT(CONFIG),
            sequence=ChunkedSequence(layout, CONFIG, LATENT_SIZE, torch.device("cpu")),
            latent_size=LATENT_SIZE,
            loss=mean_square,
            plan=ParallelPlan(),
            groups=create_training_groups(ParallelPlan(), torch.device("cpu")),
            options=StepOptions(**options),  # type: ignore[arg-type]
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_fewer_bits_follow_the_curve_of_float32(precision: str) -> None:
    """Few steps: some CPUs have to emulate them."""
    plain, short = learner(), learner(precision=precision)
    for rows in batches(CONFIG, 0, 2):
        assert float(short.learn(rows).loss) == pytest.approx(float(plain.learn(rows).loss), rel=0.02)
    assert all(weight.dtype == torch.float32 for weight in short.weights().values())


@pytest.mark.slow
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
