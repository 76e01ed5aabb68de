"""Self-forcing on toy sizes: which streams are rolled out and kept, who judges what of them, who learns when."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager

from millstream.ops.precision import working_dtype
from millstream.parallel.training.recompute import ROLES_AND_SEQUENCES, compiled_pass
from millstream.trainer.methods import matching
from millstream.trainer.methods.self_forcing import SelfForcingMethod
from millstream.trainer.pool import LatentPool
from millstream.trainer.rollout import drawn_from, ring_for, stream_batch
from tests.unit.toy_training import CPU, LEVELS, METHODS, run, self_forcing, stage

pytestmark = pytest.mark.slow


def test_a_stream_goes_on_under_another_prompt_as_a_recompute_does() -> None:
    method = METHODS["self-forcing"]()
    assert isinstance(method, SelfForcingMethod)
    dit, window, frames = method._painter, 6, 3
    text, other = torch.randn(2, 2, 5, 16).unbind(0)
    generator = torch.Generator().manual_seed(4)
    before = method._stream(dit, other, 3, generator)[:, -frames:]
    state = generator.get_state()
    found = method._stream(dit, text, 1, generator, before)
    assert torch.equal(found[:, :frames], before)
    generator.set_state(state)
    memory = ring_for(dit, method._shape, window=window, device=CPU)
    cross = dit.read_prompt(text.to(working_dtype(text.device)))
    memory.place([0, 1, 2])
    dit.commit(before, torch.zeros(2, frames), memory, cross)
    expected = stream_batch(
        dit,
        memory,
        cross,
        method._shape,
        chunks=1,
        levels=LEVELS,
        noise=drawn_from(generator, method._shape),
        first=1,
        dtype=working_dtype(text.device),
    )
    assert torch.equal(found[:, frames:], expected)


def test_rollouts_begin_go_on_and_switch_and_keep_where_they_are() -> None:
    method = METHODS["self-forcing"]()
    assert isinstance(method, SelfForcingMethod)
    seen, kept = set(), method._reservoir.state
    for seed in range(24):
        before = {name: tensor.clone() for name, tensor in kept.items()}
        rolled = method._roll(torch.Generator().manual_seed(seed))
        seen.add(rolled.kind)
        assert rolled.starts.shape[1] == 6
        assert rolled.past.shape[1] == (6 if rolled.kind == "begin" else 9)
        order = method._reservoir.draw(2, torch.Generator().manual_seed(seed))
        assert torch.equal(kept["windows"][order].float(), rolled.past[:, -3:])
        if rolled.kind != "begin":
            assert bool(before["begun"].all())
        if rolled.kind == "go on":
            assert torch.equal(kept["ids"], before["ids"])
    assert seen == {"begin", "go on", "switch"}


def test_a_stream_that_goes_on_is_judged_without_its_past() -> None:
    method = self_forcing()
    stream, noisy, level = torch.randn(2, 9, 2, 4, 4), torch.randn(2, 6, 2, 4, 4), torch.full((2, 6), 500.0)
    cross = method._matching._critic.read_prompt(torch.randn(2, 5, 16))
    for kind, forgets in (("go on", True), ("switch", False)):
        view = (method._views.wholes if kind == "go on" else method._views.made)[kind]
        one, other = (view.flows(method._matching._critic, past, noisy, level, cross) for past in (stream, stream + 1.0))
        assert torch.equal(one, other) == forgets


def test_a_share_of_the_beginnings_is_judged_as_a_whole() -> None:
    method = self_forcing(begun=1.0, whole=0.5)
    judged = [method._roll(torch.Generator().manual_seed(seed)).judged for seed in range(12)]
    wholes = sum(view is method._views.wholes["begin"] for view in judged)
    assert 0 < wholes < 12
    levels = [method._matching.noised(torch.zeros(2, 6, 2, 4, 4), view, torch.Generator().manual_seed(0))[2] for view in judged]
    assert sum(len(set(level[0].tolist())) == 1 for level in levels) == wholes, "a whole has one noise level"


def test_the_first_frame_of_a_stream_is_not_judged_as_part_of_a_whole() -> None:
    def pulled(whole: float) -> list[bool]:
        method = self_forcing(begun=1.0, whole=whole)
        method._matching._critic.head.proj.weight.data.mul_(2.0)  # so that it disagrees with the teacher
        rolled, mine = method._roll(torch.Generator().manual_seed(0)), torch.randn(2, 6, 2, 4, 4)
        target = method._matching.pull(mine, rolled, torch.Generator().manual_seed(1))
        return [not torch.equal(target[:, frame], mine[:, frame]) for frame in range(6)]

    assert pulled(whole=0.0) == [True] * 6
    assert pulled(whole=1.0) == [False] + [True] * 5


def test_streams_grow_older_where_few_that_begin_are_kept() -> None:
    def renewed(share: float) -> int:
        method = self_forcing(begun=1.0, renewed=share)
        generator = torch.Generator().manual_seed(0)
        method._roll(generator)  # fills the reservoir
        before = method._reservoir.state["windows"].clone()
        method._roll(generator)
        return sum(not torch.equal(old, new) for old, new in zip(before, method._reservoir.state["windows"], strict=True))

    assert [renewed(share) for share in (1.0, 0.5, 0.0)] == [2, 1, 0]


def test_only_streams_that_go_on_are_pulled_by_the_lasting_guidance() -> None:
    def target(**options: float) -> torch.Tensor:
        method, generator = self_forcing(**options), torch.Generator().manual_seed(0)
        method._roll(generator)
        rolled, mine = method._roll(generator), torch.ones(2, 6, 2, 4, 4)
        return method._matching.pull(mine, rolled, torch.Generator().manual_seed(1))

    for begun, alike in ((1.0, True), (0.0, False)):
        shared = dict(begun=begun, switched=0.0, guidance=3.0)
        assert torch.equal(target(**shared), target(**shared, lasting_guidance=1.0)) is alike


def test_captions_that_say_a_favoured_word_are_drawn_so_many_times_as_often() -> None:
    ids = torch.tensor([[[1, 2], [1, 3]], [[4, 2], [4, 5]]])
    clips = LatentPool(latents_KFCYX=torch.zeros(2, 3, 2, 4, 4), ids_KWS=ids, true_from_K=torch.zeros(2))
    assert clips.favouring([3, 5], 4.0).tolist() == [[1.0, 4.0], [1.0, 4.0]]
    assert clips.favouring([], 4.0).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    drawn = clips.draw_captions(2000, torch.Generator().manual_seed(0), clips.favouring([3], 9.0))
    assert (drawn[:, 1] == 3).float().mean() == pytest.approx(9 / 12, abs=0.03)


def test_a_student_waits_until_its_critic_has_learnt_from_it(tmp_path: Path) -> None:
    method = self_forcing(student_every=1, critic_first=2)
    before = [deepcopy(turn.module.state_dict()) for turn in method.turns]

    def learnt() -> list[bool]:
        after = (turn.module.state_dict() for turn in method.turns)
        return [any(not torch.equal(old[key], new[key]) for key in old) for old, new in zip(before, after, strict=True)]

    assert "match" not in run(method, tmp_path, stage(3), stop_after=2)[0].losses
    assert learnt() == [False, True]
    run(method, tmp_path, stage(3))
    assert learnt() == [True, True]


def test_the_student_and_the_critic_learn_and_the_teacher_does_not(tmp_path: Path) -> None:
    method = METHODS["self-forcing"]()
    teacher = deepcopy(method._matching._teacher.state_dict())
    before = {turn.name: deepcopy(turn.module.state_dict()) for turn in method.turns}
    run(method, tmp_path, stage(4))
    assert all(torch.equal(teacher[key], value) for key, value in method._matching._teacher.state_dict().items())
    for turn in method.turns:
        assert any(not torch.equal(before[turn.name][key], value) for key, value in turn.module.state_dict().items())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler looks at its inputs
def test_compiled_roles_learn_the_same_from_the_same_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = list[torch.fx.GraphModule]()

    def counted(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return aot_eager(graph, inputs)

    monkeypatch.setattr(matching, "compiled_pass", partial(compiled_pass, backend=counted))
    chosen = dict(begun=0.5, whole=0.5, student_every=2)
    plain, compiled = (
        run(self_forcing(**chosen, compiled=compiled), tmp_path / str(compiled), stage(5, batch=2))[-1].losses
        for compiled in (False, True)
    )
    assert compiled == pytest.approx(plain, rel=1e-4)
    assert 0 < len(graphs) < ROLES_AND_SEQUENCES
