"""Lab 05, solution."""

from __future__ import annotations

from typing import Any


def deepspeed_config(
    stage: int, batch: int, ranks: int, micro_batches: int, *, offload: bool, precision: str
) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage}
    config: dict[str, Any] = {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": batch // ranks // micro_batches,
        "gradient_accumulation_steps": micro_batches,
        "zero_optimization": zero,
    }
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        config["zero_force_ds_cpu_optimizer"] = False
    if precision != "fp32":
        config[precision] = {"enabled": True}
    return config


def state_bytes(parameters: int, stage: int, ranks: int, *, offload: bool) -> tuple[float, float]:
    weights = 2 * parameters / (ranks if stage == 3 else 1)
    gradients = 2 * parameters / (ranks if stage >= 2 else 1)
    optimiser = 12 * parameters / (ranks if stage >= 1 else 1)
    return (weights + gradients, optimiser) if offload else (weights + gradients + optimiser, 0.0)


def smallest_stage(parameters: int, ranks: int, device_bytes: float) -> tuple[int, bool] | None:
    for stage, offload in ((0, False), (1, False), (2, False), (3, False), (3, True)):
        if state_bytes(parameters, stage, ranks, offload=offload)[0] <= device_bytes:
            return stage, offload
    return None
