"""DeepSpeed configurations as people have them: what they become, and that nothing of them is dropped in
silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.core.errors import ConfigError
from millstream.train.finetune.recipe import TuningRecipe
from millstream.train.finetune.translate import read_deepspeed, translate

FULL: dict[str, Any] = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 0.5,
    "steps_per_print": 10,
    "wall_clock_breakdown": False,
    "bf16": {"enabled": True},
    "fp16": {"enabled": False},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": 3e-5, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7},
    },
    "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 500, "total_num_steps": 9000}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "overlap_comm": True},
    "activation_checkpointing": {"partition_activations": True},
    "flops_profiler": {"enabled": True},
}


def test_a_configuration_becomes_a_recipe_that_is_one() -> None:
    found = translate(FULL, ranks=4)
    assert found.parallel == {"data": "fsdp", "micro_batches": 4, "dp": 4}
    rest = ['model = "wan-tiny"', 'weights = ["random"]', 'data = "clips"']
    recipe = msgspec.toml.decode("\n".join([*rest, *found.lines()]), type=TuningRecipe)
    assert (recipe.batch, recipe.steps, recipe.warm_up, recipe.lr, recipe.schedule) == (
        32,
        9000,
        500,
        3e-5,
        "cosine",
    )
    assert (recipe.precision, recipe.recompute, recipe.grad_clip, recipe.weight_decay) == (
        "bf16",
        "full",
        0.5,
        3e-7,
    )
    assert (recipe.plan.data, recipe.optimiser, recipe.offload) == ("fsdp", "adamw", "optimiser")


def test_what_has_no_twin_is_named() -> None:
    named = [each.partition(":")[0] for each in translate(FULL, ranks=4).without_twin]
    assert named == [
        "optimizer betas",
        "activation_checkpointing partition_activations",
        "flops_profiler",
    ]
    found = translate(
        {"optimizer": {"type": "OneBitAdam", "params": {}}, "train_batch_size": "auto", "pipeline": {"x": 1}},
        1,
    )
    assert [each.partition(":")[0] for each in found.without_twin] == [
        "optimizer OneBitAdam",
        "train_batch_size",
        "pipeline",
    ]


def test_what_is_said_within_a_field_is_named_too_unless_it_is_as_here() -> None:
    config = {
        "fp16": {"enabled": True, "initial_scale_power": 16, "loss_scale_window": 1000, "auto_cast": True},
        "bf16": {"enabled": False, "immediate_grad_update": True},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-4, "eps": 1e-6, "torch_adam": True, "bias_correction": "auto"},
        },
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_num_steps": 5, "warmup_min_lr": 0, "warmup_type": "log"},
        },
        "zero_optimization": {
            "stage": 2,
            "overlap_comm": True,
            "reduce_bucket_size": 5e8,
            "mics_shard_size": 4,
        },
    }
    assert translate(config, ranks=1).without_twin == [
        "fp16 auto_cast: nothing like it",
        "fp16 loss_scale_window: 1000, always 2000 here",
        "optimizer eps: 1e-06, always 1e-08 here",
        "scheduler warmup_type: log, always linear here",
        "zero_optimization mics_shard_size: nothing like it",
    ]


@pytest.mark.parametrize(
    ("given", "batch", "parts"),
    [
        ({"train_batch_size": 16}, 16, None),
        ({"train_micro_batch_size_per_gpu": 2}, 8, None),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, 24, 3),
        ({"train_batch_size": 16, "gradient_accumulation_steps": 2}, 16, 2),
        ({}, None, None),
    ],
)
def test_two_of_three_say_the_batch(given: dict[str, Any], batch: int | None, parts: int | None) -> None:
    found = translate(given, ranks=4)
    assert (found.recipe.get("batch"), found.parallel.get("micro_batches")) == (batch, parts)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --ranks"):
        translate({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}, ranks=1)
    with pytest.raises(ConfigError, match="stage must be 0, 1, 2 or 3, got 4"):
        translate({"zero_optimization": {"stage": 4}}, ranks=1)
    path = tmp_path / "ds.json"
    with pytest.raises(
        ConfigError,
        match=r"cannot read .*ds\.json: No such file or directory; name a DeepSpeed configuration",
    ):
        read_deepspeed(path)
    for text in ("[1]", "{"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="is no DeepSpeed configuration"):
            read_deepspeed(path)
