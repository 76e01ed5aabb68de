"""Lab 05, what is asked of an answer. The planner and the train's own translator judge it."""

from __future__ import annotations

from types import ModuleType

from millstream.planner.training import Sharding, training_state
from millstream.train.finetune.translate import translate

SEVEN = 7_000_000_000
SEVENTY = 70_000_000_000


def judge_milestone_1_our_trainer_reads_your_configuration(answer: ModuleType) -> None:
    """`millstream train translate ds.json` shows what it reads. The three batch sizes: whole = micro *
    accumulation * ranks."""
    for stage, data in ((1, "zero1"), (2, "zero2"), (3, "fsdp")):
        found = translate(answer.deepspeed_config(stage, 32, 4, 2, offload=False, precision="bf16"), 4)
        assert found.parallel == {"data": data, "micro_batches": 2, "dp": 4}, (
            f"stage {stage} reads as {found.parallel}"
        )
        assert found.recipe == {"precision": "bf16", "batch": 32}, f"stage {stage} reads as {found.recipe}"
        assert not found.without_twin, f"stage {stage}: {'; '.join(found.without_twin)}"


def judge_milestone_2_offload_and_float32_are_said_as_deepspeed_says_them(answer: ModuleType) -> None:
    """zero_optimization has offload_optimizer with a device; float32 is what DeepSpeed does when nothing is
    enabled."""
    config = answer.deepspeed_config(2, 8, 2, 1, offload=True, precision="fp32")
    found = translate(config, 2)
    assert found.recipe == {"batch": 8, "offload": "optimiser"}, f"it reads as {found.recipe}"
    assert config.get("zero_force_ds_cpu_optimizer") is False, "it would compile an optimiser of its own"


def judge_milestone_3_bytes_are_the_planners(answer: ModuleType) -> None:
    """Stage 1 divides the optimiser, stage 2 gradients too, stage 3 weights too. Offload moves the
    optimiser's share."""
    for stage in range(4):
        for ranks, offload in ((1, False), (8, False), (64, True)):
            planned = training_state(SEVEN, Sharding(zero=stage, shards=ranks, offload=offload))
            device, host = answer.state_bytes(SEVEN, stage, ranks, offload=offload)
            assert abs(device - planned.total) < 1, (
                f"stage {stage} over {ranks}: {device}, the planner says {planned.total}"
            )
            assert abs(host - planned.host) < 1, (
                f"stage {stage} over {ranks}: {host} on the host, planner {planned.host}"
            )


def judge_milestone_4_you_choose_the_smallest_stage_that_fits(answer: ModuleType) -> None:
    """Try them in the order of the docstring: a smaller stage sends less."""
    for parameters, ranks, gigabytes, expected in (
        (SEVEN, 8, 141, (0, False)),
        (SEVEN, 8, 80, (1, False)),
        (SEVEN, 8, 30, (2, False)),
        (SEVENTY, 64, 24, (3, False)),
        (SEVENTY, 8, 80, (3, True)),
        (SEVENTY, 1, 80, None),
    ):
        found = answer.smallest_stage(parameters, ranks, gigabytes * 1e9)
        assert found == expected, (
            f"{parameters / 1e9:g} billion on {ranks} devices of {gigabytes} GB: {found}, not {expected}"
        )
