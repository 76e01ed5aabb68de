"""Distribution matching with a given past, on toy sizes: what the student is shown, and what it is judged
by."""

from __future__ import annotations

import pytest
import torch

from millstream.train.distil.matching import ClipPainting, MatchingDistillation, Painted
from millstream.train.distil.row_randomness import RowRandomness
from millstream.train.distil.training_rows import forced_flows
from tests.unit.models_for_tests import relative_error, ring
from tests.unit.toy_training import CPU, LEVELS, SMALL, distilled, dmd, pair

LOTS = RowRandomness(0, "student", 0, range(2), CPU)


def painted_by(forcing: str) -> tuple[MatchingDistillation, Painted]:
    training = distilled(dmd(forcing=forcing))
    method = training.distillation
    assert isinstance(method, MatchingDistillation)
    assert isinstance(method._painting, ClipPainting)
    return method, method._painting.paint(training.batch(0), LOTS)


@pytest.mark.parametrize("forcing", ["teacher", "diffusion"])
@torch.no_grad()
def test_chunks_are_painted_as_a_stream_would_after_real_ones(forcing: str) -> None:
    method, painted = painted_by(forcing)
    dit = pair(1).dit
    past, past_BF = painted.shown or (painted.past, torch.zeros(2, 6))
    shown = painted.starts, painted.level_BF, painted.text
    flows = forced_flows(method._student.predictor, past, *shown, painted.made.sequence, past_BF)[:1]
    memory = ring(SMALL, (2, 2), 6)
    cross = dit.read_prompt(painted.text[:1])
    for chunk in range(2):
        frames = slice(3 * chunk, 3 * chunk + 3)
        memory.place(list(range(frames.start, frames.stop)))
        expected = dit(painted.starts[:1, frames], painted.level_BF[:1, frames], memory, cross)
        assert relative_error(flows[:, frames], expected) < 2e-2  # the one in the precision of training
        dit.commit(past[:1, frames], past_BF[:1, frames], memory, cross)


@pytest.mark.parametrize("forcing", ["teacher", "diffusion"])
def test_only_diffusion_forcing_shows_the_student_a_noisy_past(forcing: str) -> None:
    _, painted = painted_by(forcing)
    if forcing == "teacher":
        assert painted.shown is None
        return
    assert painted.shown is not None
    past, level_BF = painted.shown
    assert not torch.equal(past, painted.past)
    assert len(set(level_BF[0].tolist())) == 2, "a level for each chunk"
    assert painted.level_BF.unique().tolist()[0] in LEVELS


def test_teacher_and_critic_judge_after_the_clean_past() -> None:
    method, painted = painted_by("diffusion")
    judges = method._judges
    seen = list[torch.Tensor]()
    for predictor in (judges._teacher, judges._critic.predictor):
        predictor.dit.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    judges.pull(method._judged(painted.pictures, painted, LOTS), painted.judged, 3.0)
    assert len(seen) == 3
    assert all(torch.equal(shown[:, :3], painted.past[:, :3]) for shown in seen)
