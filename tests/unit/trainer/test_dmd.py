"""Distribution matching with a given past, on toy sizes: what the student is shown, and what it is judged by."""

from __future__ import annotations

import pytest
import torch

from tests.unit.models_for_tests import relative_error, ring
from tests.unit.toy_training import LEVELS, SMALL, dmd


@pytest.mark.parametrize("forcing", ["teacher", "diffusion"])
@torch.no_grad()
def test_chunks_are_painted_as_a_stream_would_after_real_ones(forcing: str) -> None:
    method = dmd(forcing=forcing)
    painted, dit = method._paint(torch.Generator().manual_seed(0)), method._student.dit
    past, past_BF = painted.shown or (painted.past, torch.zeros(2, 6))
    cross = dit.read_prompt(painted.text)
    flows = method._view.flows(dit, past, painted.starts, painted.level_BF, cross, past_BF)[:1]
    memory, cross = ring(SMALL, (2, 2), 6), dit.read_prompt(painted.text[:1])
    for chunk in range(2):
        frames = slice(3 * chunk, 3 * chunk + 3)
        memory.place(list(range(frames.start, frames.stop)))
        expected = dit(painted.starts[:1, frames], painted.level_BF[:1, frames], memory, cross)
        assert relative_error(flows[:, frames], expected) < 1e-5
        dit.commit(past[:1, frames], past_BF[:1, frames], memory, cross)


@pytest.mark.parametrize("forcing", ["teacher", "diffusion"])
def test_only_diffusion_forcing_shows_the_student_a_noisy_past(forcing: str) -> None:
    method = dmd(forcing=forcing)
    painted = method._paint(torch.Generator().manual_seed(0))
    if forcing == "teacher":
        assert painted.shown is None
        return
    assert painted.shown is not None
    past, level_BF = painted.shown
    assert not torch.equal(past, painted.past)
    assert len(set(level_BF[0].tolist())) == 2, "a level for each chunk"
    assert painted.level_BF.unique().tolist()[0] in LEVELS


def test_teacher_and_critic_judge_after_the_clean_past() -> None:
    method = dmd(forcing="diffusion")
    generator = torch.Generator().manual_seed(0)
    painted = method._paint(generator)
    seen: list[torch.Tensor] = []
    matching = method._matching
    for dit in (matching._teacher.dit, matching._critic):
        dit.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    matching.pull(painted.pictures, painted, generator)
    assert len(seen) == 3
    assert all(torch.equal(shown[:, :3], painted.past[:, :3]) for shown in seen)
