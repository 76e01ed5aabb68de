"""Self-forcing on toy sizes: which streams are rolled out and kept, who judges what of them, who learns
when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from millstream.models.dit import CausalDiT
from millstream.ops.precision import working_dtype
from millstream.train.distil import pool_training
from millstream.train.distil.matching import MatchingDistillation
from millstream.train.distil.pool_training import PoolTraining
from millstream.train.distil.row_randomness import RowRandomness
from millstream.train.distil.self_forcing import Rollout, StreamPainting
from millstream.train.rollout import ring_for, stream_batch
from millstream.train.sequence import forced_flow
from tests.unit.toy_training import CPU, LEVELS, distilled, pair, run, self_forcing, stage

pytestmark = pytest.mark.slow


def lots(seed: int) -> RowRandomness:
    return RowRandomness(seed, "student", 0, range(2), CPU)


def roles_of(training: PoolTraining) -> tuple[MatchingDistillation, StreamPainting]:
    method = training.distillation
    assert isinstance(method, MatchingDistillation)
    assert isinstance(method._painting, StreamPainting)
    return method, method._painting


def painted(training: PoolTraining, seed: int) -> Rollout:
    return roles_of(training)[1].paint(training.batch(seed), lots(seed))


def test_a_stream_goes_on_under_another_prompt_as_a_recompute_does() -> None:
    painter = roles_of(distilled(self_forcing()))[1]._painter
    shape = (2, 3, 2, 4, 4)
    frames = 3
    dit = painter.dit
    dtype = working_dtype(CPU)
    text, other = torch.randn(2, 2, 5, 16).unbind(0)
    asked: dict[str, Any] = dict(levels=LEVELS, window=6)
    before = painter.stream(other, shape, lots(4), chunks=3, **asked)[0][:, -frames:]
    found, _ = painter.stream(text, shape, lots(5), chunks=1, before=before, **asked)
    assert torch.equal(found[:, :frames], before)
    memory = ring_for(dit, shape, window=6, device=CPU, dtype=dtype)
    cross = dit.read_prompt(text.to(dtype))
    memory.place([0, 1, 2])
    dit.commit(before, torch.zeros(2, frames), memory, cross)
    expected = stream_batch(
        dit,
        memory,
        cross,
        shape,
        chunks=1,
        levels=LEVELS,
        noise=lambda chunk, step: lots(5).noise(shape[1:], epoch=0, chunk=chunk, step=step),
        first=1,
        dtype=dtype,
    )
    assert torch.equal(found[:, frames:], expected)


def test_rollouts_begin_go_on_and_switch_and_keep_where_they_are() -> None:
    training = distilled(self_forcing(begun=0.3, switched=0.3))
    kept = roles_of(training)[1].kept
    seen = set[str]()
    for seed in range(24):
        begun, (_, clips) = kept.has_begun(0), kept.at(0)
        rolled = painted(training, seed)
        seen.add(rolled.kind)
        assert rolled.starts.shape[1] == 6
        assert rolled.past.shape[1] == (6 if rolled.kind == "begin" else 9)
        assert torch.equal(kept.at(0)[0].float(), rolled.past[:, -3:])
        if rolled.kind != "begin":
            assert begun
        if rolled.kind == "go on":
            assert kept.at(0)[1] == clips
    assert seen == {"begin", "go on", "switch"}


def test_a_stream_that_goes_on_is_judged_without_its_past() -> None:
    views = roles_of(distilled(self_forcing()))[1]._views
    dit = pair(1).dit
    stream = torch.randn(2, 9, 2, 4, 4)
    noisy = torch.randn(2, 6, 2, 4, 4)
    level = torch.full((2, 6), 500.0)
    cross = dit.read_prompt(torch.randn(2, 5, 16))
    for view, forgets in ((views.wholes["go on"], True), (views.made["switch"], False)):
        one, other = (
            forced_flow(dit, past, noisy, level, view.sequence, cross) for past in (stream, stream + 1.0)
        )
        assert torch.equal(one, other) == forgets


def test_a_share_of_the_beginnings_is_judged_as_a_whole() -> None:
    training = distilled(self_forcing(begun=1.0, whole=0.5))
    method, painting = roles_of(training)
    rolled = [painted(training, seed) for seed in range(12)]
    wholes = sum(each.judged is painting._views.wholes["begin"] for each in rolled)
    assert 0 < wholes < 12
    levels = [method._judged(each.pictures, each, lots(0)).seen.level_BF for each in rolled]
    assert sum(len(set(level[0].tolist())) == 1 for level in levels) == wholes, "a whole has one noise level"


def pulled(training: PoolTraining, rolled: Rollout, mine: Tensor) -> Tensor:
    method, _ = roles_of(training)
    return method._judges.pull(method._judged(mine, rolled, lots(1)), rolled.judged, rolled.guidance)


def test_the_first_frame_of_a_stream_is_not_judged_as_part_of_a_whole() -> None:
    def moved(whole: float) -> list[bool]:
        training = distilled(self_forcing(begun=1.0, whole=whole))
        critic = roles_of(training)[0]._judges._critic.predictor.dit
        assert isinstance(critic, CausalDiT)
        critic.head.proj.weight.data.mul_(2.0)  # so that it disagrees with the teacher
        mine = torch.randn(2, 6, 2, 4, 4)
        target = pulled(training, painted(training, 0), mine)
        return [not torch.equal(target[:, frame], mine[:, frame]) for frame in range(6)]

    assert moved(whole=0.0) == [True] * 6
    assert moved(whole=1.0) == [False] + [True] * 5


def test_streams_grow_older_where_few_that_begin_are_kept() -> None:
    def renewed(share: float) -> int:
        training = distilled(self_forcing(begun=1.0, renewed=share))
        kept = roles_of(training)[1].kept
        painted(training, 0)  # all begin
        before, _ = kept.at(0)
        painted(training, 1)
        return sum(not torch.equal(old, new) for old, new in zip(before, kept.at(0)[0], strict=True))

    assert [renewed(share) for share in (1.0, 0.5, 0.0)] == [2, 1, 0]


def test_every_row_is_renewed_in_its_turn_where_few_are() -> None:
    training = distilled(self_forcing(begun=1.0, renewed=0.5))
    kept = roles_of(training)[1].kept
    changed = set[int]()
    painted(training, 0)
    for seed in range(1, 9):
        before, _ = kept.at(0)
        painted(training, seed)
        changed |= {row for row in range(2) if not torch.equal(before[row], kept.at(0)[0][row])}
    assert changed == {0, 1}


def test_only_streams_that_go_on_are_pulled_by_the_lasting_guidance() -> None:
    def target(**options: float) -> Tensor:
        training = distilled(self_forcing(**options))
        painted(training, 0)
        return pulled(training, painted(training, 1), torch.ones(2, 6, 2, 4, 4))

    for begun, alike in ((1.0, True), (0.0, False)):
        shared = dict(begun=begun, switched=0.0, guidance=3.0)
        assert torch.equal(target(**shared), target(**shared, lasting_guidance=1.0)) is alike


def test_captions_that_say_a_favoured_word_are_drawn_so_many_times_as_often() -> None:
    training = distilled(self_forcing(), stage(batch=2000), favoured=[3])
    says = (training._pool.ids_KWS.flatten(0, 1) == 3).any(dim=1)
    share = says.float().mean()
    drawn = says[training._captions(0)].float().mean()
    assert drawn == pytest.approx(float(9 * share / (9 * share + 1 - share)), abs=0.03)


def test_without_favoured_words_every_clip_has_its_turn() -> None:
    training = distilled(self_forcing(), stage(batch=4))
    clips = [caption // 2 for step in range(2) for caption in training._captions(step)]
    assert sorted(clips) == list(range(8))


def test_a_student_waits_until_its_critic_has_learnt_from_it(tmp_path: Path) -> None:
    plan = stage(3, batch=2)
    training = distilled(self_forcing(student_every=1, critic_first=2), plan)
    before = training.learner.weights()
    assert "match" not in run(training, tmp_path, plan, stop_after=2)[0].losses
    assert all(torch.equal(weight, before[name]) for name, weight in training.learner.weights().items())
    training = distilled(self_forcing(student_every=1, critic_first=2), plan)
    run(training, tmp_path, plan)
    assert any(not torch.equal(weight, before[name]) for name, weight in training.learner.weights().items())


def test_the_student_and_the_critic_learn_and_the_teacher_does_not(tmp_path: Path) -> None:
    plan = stage(4, batch=2)
    training = distilled(self_forcing(begun=0.3, switched=0.3, student_every=2), plan)
    judges = roles_of(training)[0]._judges
    begun = pair(1).dit.state_dict()
    run(training, tmp_path, plan)
    teacher = judges._teacher.dit.state_dict()
    critic = judges._critic.weights()
    assert all(torch.equal(begun[name], weight) for name, weight in teacher.items())
    for learnt in (critic, training.learner.weights()):
        assert any(not torch.equal(begun[name], weight) for name, weight in learnt.items())


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # the compiler looks at its inputs
def test_compiled_roles_learn_the_same_from_the_same_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_training, "COMPILER", "aot_eager")
    options = self_forcing(begun=0.5, whole=0.5, student_every=2)
    plan = stage(5, batch=2)
    plain, compiled = (
        run(distilled(options, plan, compiled=compiled), tmp_path / str(compiled), plan)[-1].losses
        for compiled in (False, True)
    )
    assert compiled == pytest.approx(plain, rel=1e-4)
