"""Distillation of a model that is steered: every role is shown what was held in each frame."""

from __future__ import annotations

import pytest
import torch

from millstream.models.entries import NO_ENTRIES, Entries
from millstream.train.distil.matching import MatchingDistillation
from millstream.train.distil.pool_training import PoolTraining
from millstream.train.distil.row_randomness import RowRandomness
from millstream.train.distil.self_forcing import Rollout, StreamPainting
from millstream.train.distil.training_rows import forced_flows
from millstream.train.noising import clean_estimate
from millstream.train.options import ConsistencyOptions, MethodOptions, ODEOptions
from millstream.train.sequence import ChunkedSequence, teacher_forced
from tests.unit.models_for_tests import relative_error
from tests.unit.toy_training import CPU, LEVELS, SMALL, distilled, dmd, self_forcing

METHODS: dict[str, MethodOptions] = {
    "ode": ODEOptions(window=6, teacher_steps=2),
    "consistency": ConsistencyOptions(window=6, teacher_steps=2),
    "consistency, continuous": ConsistencyOptions(window=6, consistency="continuous", tangent_warm_up=0),
    "matching": dmd(),
    "matching, noisy past": dmd(forcing="diffusion"),
    "self-forcing": self_forcing(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_what_is_held_moves_every_method_and_no_method_moves_what_a_key_means(name: str) -> None:
    found = []
    for steered in (False, True):
        training = distilled(METHODS[name], steered=steered)
        before = [weight.clone() for weight in training.distillation._setting.injectors.parameters()]
        losses = training.step(0)
        found.append({loss: float(value) for loss, value in losses.items() if "norm" not in loss})
        after = training.distillation._setting.injectors.parameters()
        assert all(torch.equal(*each) for each in zip(before, after, strict=True))
    plain, held = found
    assert plain.keys() == held.keys()
    for loss, value in held.items():
        assert torch.isfinite(torch.tensor(value))
        assert value != pytest.approx(plain[loss], rel=1e-4), loss


def test_entries_are_those_of_the_end_that_a_sequence_lays_out() -> None:
    sequence = ChunkedSequence(teacher_forced((0, 1), 3, 6), SMALL, (4, 4), CPU)
    numbered = Entries(time_BFD=torch.arange(9.0).view(1, 9, 1))
    assert sequence.entered(numbered).time_BFD.flatten().tolist() == [3, 4, 5, 3, 4, 5, 6, 7, 8]
    assert sequence.entered(NO_ENTRIES) == NO_ENTRIES


def painting_of(training: PoolTraining) -> tuple[MatchingDistillation, StreamPainting]:
    method = training.distillation
    assert isinstance(method, MatchingDistillation)
    assert isinstance(method._painting, StreamPainting)
    return method, method._painting


@torch.no_grad()
def painted_again(method: MatchingDistillation, rolled: Rollout, *, steered: bool) -> torch.Tensor:
    """What the last step makes of what it started from, in one pass as it is learnt."""
    flow = forced_flows(
        method._student.predictor,
        rolled.past,
        rolled.starts,
        rolled.level_BF,
        rolled.text,
        rolled.made.sequence,
        entries=rolled.entries if steered else NO_ENTRIES,
    )
    return clean_estimate(rolled.starts, rolled.level_BF, flow)


@pytest.mark.slow
def test_a_rollout_that_is_computed_again_has_held_what_the_stream_held() -> None:
    training = distilled(self_forcing(begun=0.4, switched=0.4), steered=True)
    method, painting = painting_of(training)
    compared = set[str]()
    for seed in range(30):
        rolled = painting.paint(training.batch(seed), RowRandomness(seed, "student", 0, range(2), CPU))
        assert rolled.entries.num_frames == rolled.past.shape[1]
        is_last_step = float(rolled.level_BF[0, 0]) == LEVELS[-1]
        is_whole = rolled.kind != "go on"  # a longer stream has seen more than its last window
        if is_last_step and is_whole:
            compared.add(rolled.kind)
            assert relative_error(painted_again(method, rolled, steered=True), rolled.pictures) < 2e-2
            assert relative_error(painted_again(method, rolled, steered=False), rolled.pictures) > 4e-2
    assert compared == {"begin", "switch"}


@pytest.mark.slow
def test_kept_streams_remember_what_was_held_across_a_stop() -> None:
    training = distilled(self_forcing(), steered=True)
    _, painting = painting_of(training)
    rolled = painting.paint(training.batch(0), RowRandomness(0, "student", 0, range(2), CPU))
    held = painting.kept.actions_at(0)
    assert held is not None
    assert held.shape == (2, 3, 3)
    expected = training.distillation._setting.entries(held).time_BFD
    torch.testing.assert_close(expected, rolled.entries.time_BFD[:, -3:])
    again = distilled(self_forcing(), steered=True)
    again.load_state(training.state())
    assert torch.equal(painting_of(again)[1].kept.actions_at(0), held)
