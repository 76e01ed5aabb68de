"""Brook's training shared by ranks: every stage ends where one process does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from millstream.core.errors import ConfigError
from millstream.core.presets import MODELS
from millstream.train.brook import BrookRun
from millstream.train.parallel.groups import create_world
from millstream.train.plan import RunPlan, read_plan
from millstream.train.recipe import RECIPES
from millstream.train.share import ALONE, BatchShare
from tests.dist.ranks import run_ranks
from tests.unit.small_brook import SMALL_BROOK

pytestmark = pytest.mark.slow


def small_plan() -> RunPlan:
    """Every stage in miniature, with real frames' matching besides, and batches that two can share."""
    plan = read_plan(RECIPES / "brook-smoke.toml")
    given = replace(plan.stage("self-forcing"), name="given", method="dmd", options={"forcing": "diffusion"})
    few = {"vae": 2, "teacher": 2, "given": 2, "classifier": 1}
    stages = (*plan.stages[:3], given, *plan.stages[3:])
    return replace(
        plan, stages=tuple(replace(stage, steps=few.get(stage.name, stage.steps)) for stage in stages)
    )


def train(rank: int, folder: Path, ranks: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "brook", SMALL_BROOK)
        share = BatchShare(create_world()) if ranks > 1 else ALONE
        BrookRun(small_plan(), folder, device=torch.device("cpu"), share=share).train(
            lambda stage, said: None
        )


def test_two_ranks_end_at_the_losses_and_weights_of_one_process(tmp_path: Path) -> None:
    train(0, tmp_path / "one", 1)
    run_ranks(train, 2, tmp_path / "two", 2, timeout_s=240.0)
    for stage in small_plan().stages:
        one, two = (
            json.loads((tmp_path / run / f"{stage.name}.jsonl").read_text().splitlines()[-1])
            for run in ("one", "two")
        )
        del one["seconds"], two["seconds"]
        assert two == pytest.approx(one, rel=1e-4, abs=2e-6), stage.name
        kept = [
            torch.load(tmp_path / run / f"{stage.name}-average.pt", weights_only=True)
            for run in ("one", "two")
        ]
        for name, expected in kept[0].items():
            assert (kept[1][name] - expected).norm() <= 1e-3 * expected.norm() + 1e-6, f"{stage.name}: {name}"


def test_a_batch_that_ranks_cannot_share_is_told_with_what_would_fit() -> None:
    with pytest.raises(ConfigError, match=r"'vae': a batch of 2 does not divide over 3 ranks; 1, 2 would"):
        small_plan().check_ranks(3)
