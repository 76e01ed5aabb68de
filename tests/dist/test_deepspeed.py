"""DeepSpeed's engine under our loop: what our own learners learn, by every stage; and its checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from millstream.core.errors import ConfigError
from millstream.train.finetune.dataset import ClipSet
from millstream.train.finetune.run import TuningRun
from millstream.train.loop import StepReport
from millstream.train.parallel.deepspeed import _settled
from millstream.train.parallel.task import FlowRows
from tests.dist.ranks import run_ranks
from tests.dist.test_tuning import finished, last_loss, torchrun, write_recipe
from tests.unit.commands.test_cli import millstream
from tests.unit.train.finetune.datasets import SPEC, recipe, small_dataset

LR = {
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": 1e-2, "betas": [0.9, 0.99], "weight_decay": 0.01, "torch_adam": True},
    }
}
OFFLOADED = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}


@pytest.fixture
def installed() -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed is an extra: pip install millstream[deepspeed]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("deepspeed")
    small_dataset(found / "clips")
    return found


def learnt(path: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = load_file(path.with_suffix("") / "lora.safetensors")
    return found


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("stage", "more"), [(0, {}), (1, LR), (2, {}), (3, {}), (2, OFFLOADED)])
def test_each_stage_learns_what_one_process_learns(folder: Path, stage: int, more: dict[str, Any]) -> None:
    alone = write_recipe(folder, ranks=1)
    ranks = write_recipe(folder, ranks=2, steps=6)
    if not alone.with_suffix("").exists():
        finished(alone, 1)
    ds = folder / f"ds{stage}.json"
    ds.write_text(json.dumps({"zero_optimization": {"stage": stage}, "train_batch_size": "auto", **more}))
    out = folder / f"stage{stage}-{len(more)}"
    finished(ranks, 2, command=("--deepspeed", str(ds), "--out", str(out)))
    assert last_loss(out.with_suffix(".toml")) == pytest.approx(last_loss(alone), rel=1e-4)
    for name, value in learnt(alone).items():
        assert (learnt(out.with_suffix(".toml"))[name] - value).norm() <= 1e-3 * value.norm() + 1e-6, name


@pytest.mark.usefixtures("installed")
def test_a_run_goes_on_from_deepspeeds_checkpoint(folder: Path) -> None:
    ds = folder / "ds.json"
    ds.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    whole = write_recipe(folder, ranks=2, steps=8)
    parts = folder / "parts"
    finished(whole, 2, command=("--deepspeed", str(ds)))
    (first,) = sorted((whole.with_suffix("") / "checkpoints").glob("step-00000004"))
    (parts / "checkpoints").mkdir(parents=True)
    first.rename(parts / "checkpoints" / first.name)
    finished(whole, 2, command=("--deepspeed", str(ds), "--out", str(parts)))
    for name, value in learnt(whole).items():
        assert (learnt(parts.with_suffix(".toml"))[name] == value).all(), name


def tune_with_a_broken_step(rank: int, folder: Path, stage: int) -> tuple[list[int], bool]:
    """Steps that were left out, and whether all that was learnt are numbers."""
    os.environ["LOCAL_RANK"] = str(rank)  # as torchrun does
    config = {"zero_optimization": {"stage": stage}}
    made = TuningRun(
        recipe(parallel={"dp": 2}),
        SPEC,
        ClipSet(folder / "clips"),
        folder,
        torch.device("cpu"),
        deepspeed=config,
    )
    rows = made._rows
    said = list[StepReport]()

    def broken(step: int) -> FlowRows:
        found = rows(step)
        return found._replace(target_BFCYX=found.target_BFCYX * float("nan")) if step == 3 else found

    made._rows = broken  # type: ignore[method-assign]
    made.train(said.append, lambda: False)
    left_out = [report.step for report in said if report.losses["skipped"]]
    return left_out, all(bool(torch.isfinite(value).all()) for value in made.learnt().values())


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_step_without_numbers_is_left_out(tmp_path: Path, stage: int) -> None:
    small_dataset(tmp_path / "clips")
    (left_out, are_numbers), _ = run_ranks(tune_with_a_broken_step, 2, tmp_path, stage, timeout_s=120.0)
    assert left_out == [3]
    assert are_numbers


def test_what_contradicts_the_recipe_is_refused() -> None:
    assert _settled({"train_batch_size": "auto", "zero_optimization": {"stage": 1}}, 8, 2, 2, 0.5) == {
        "gradient_clipping": 0.5,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": 1},
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
    }
    with pytest.raises(
        ConfigError, match="train_batch_size is 16 in DeepSpeed's configuration and 8 by the recipe"
    ):
        _settled({"train_batch_size": 16}, 8, 2, 2, 0.5)


@pytest.mark.usefixtures("installed")
def test_what_deepspeed_refuses_is_one_line(folder: Path) -> None:
    ds = folder / "refused.json"
    ds.write_text(json.dumps({"zero_optimization": {"stage": 7}}))
    with torchrun(
        write_recipe(folder, ranks=2), 2, command=("--deepspeed", str(ds), "--out", str(folder / "no"))
    ) as process:
        said, _ = process.communicate(timeout=240)
    assert process.returncode != 0
    assert (
        "error: DeepSpeed cannot begin with its configuration: 1 validation error for DeepSpeedZeroConfig stage"
        in said
    )
    assert "[rank0]: Traceback" not in said


def test_without_torchrun_it_says_how_to_start(folder: Path) -> None:
    ds = folder / "alone.json"
    ds.write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    options = ("--device", "cpu", "--deepspeed", ds, "--out", folder / "nobody")
    code, _, errors = millstream("train", write_recipe(folder, ranks=1), *options)
    assert code == 2
    assert "start it with torchrun --nproc-per-node 1 -m millstream train" in errors
