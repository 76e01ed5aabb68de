"""Tuning by reward with rollouts on a rank of their own: weights by broadcast; what is learnt is what one
process learns."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from millstream.train.parallel.groups import create_world
from millstream.train.rl.remote_rollouts import LEARNER, obey
from millstream.train.rl.run import PolicyReport, PolicyRun, make_actor, make_batches
from tests.dist.ranks import run_ranks
from tests.unit.train.rl.small_policy import CPU
from tests.unit.train.rl.test_policy_run import SPEC, recipe

ASKED = recipe(
    steps=3, asynchronous=True, placement="apart", evaluate_prompts=1, checkpoint_every=9, evaluate_every=9
)


def learnt(run: PolicyRun) -> tuple[Tensor, list[float]]:
    said = list[PolicyReport]()
    run.train(said.append, lambda: False)
    run.close()
    return run.learnt()["head.proj.weight"], [report.numbers["behind"] for report in said]


def on_rank(rank: int, folder: Path) -> tuple[Tensor, list[float]] | int:
    world = create_world()
    if world.rank == LEARNER:
        return learnt(PolicyRun(ASKED, SPEC, folder, folder, CPU, world))
    maker = make_batches(ASKED, SPEC, make_actor(ASKED, SPEC, CPU), folder, CPU, threaded=False)
    obey(maker, world)
    return maker.engine.version


def test_rollouts_on_a_rank_of_their_own_teach_what_those_at_home_do(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    expected, behind = learnt(PolicyRun(ASKED, SPEC, tmp_path / "home", tmp_path, CPU))
    (found, behind_apart), version = run_ranks(on_rank, 2, tmp_path)
    assert behind == behind_apart == [0, 1, 1]
    assert version == 3, "the last evaluation is of the last weights"
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
