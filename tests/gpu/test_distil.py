"""Students that learn from others on a GPU: every method takes steps in bfloat16, and rollouts are on the
fast path."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from millstream.core.presets import find_model
from millstream.models.fast.stack import FastStack
from millstream.models.registry import load_dit
from millstream.train.distil.matching import MatchingDistillation
from millstream.train.distil.row_randomness import RowRandomness
from millstream.train.distil.self_forcing import Painter, StreamPainting
from millstream.train.finetune.dataset import ClipSet
from millstream.train.finetune.run import TuningRun
from millstream.train.loop import StepReport
from tests.unit.models_for_tests import relative_error
from tests.unit.train.distil.distilling import METHODS
from tests.unit.train.finetune.datasets import recipe, small_dataset

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

GPU = torch.device("cuda")
SPEC = find_model("wan-mini")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_steps_in_bfloat16(tmp_path: Path, name: str) -> None:
    changed = METHODS[name] | {"model": SPEC.name, "precision": "bf16", "recompute": "full", "steps": 3}
    clips = ClipSet(small_dataset(tmp_path / "clips", spec=SPEC, sizes=((16, 16),)))
    run = TuningRun(recipe(**changed), SPEC, clips, tmp_path, GPU)
    said = list[StepReport]()
    run.train(said.append, lambda: False)
    assert not any(report.losses["skipped"] for report in said)
    if isinstance(run._distillation, MatchingDistillation) and isinstance(
        run._distillation._painting, StreamPainting
    ):
        assert isinstance(run._distillation._painting._painter.dit.blocks, FastStack)


def test_a_rollout_on_the_fast_path_is_the_plain_one() -> None:
    lots = RowRandomness(0, "student", 0, [0, 1], GPU)
    text = torch.randn(2, 32, 64, device=GPU)
    shape = (2, 3, 16, 32, 32)
    plain, fast = (
        Painter(
            load_dit(SPEC, ["random:3"], device=GPU, dtype=torch.bfloat16), torch.bfloat16, is_fast=is_fast
        )
        for is_fast in (False, True)
    )
    streams = [
        painter.stream(text, shape, lots, chunks=4, levels=(1000.0, 500.0), window=9)[0]
        for painter in (plain, fast)
    ]
    assert relative_error(streams[1].float(), streams[0].float()) < 0.05
