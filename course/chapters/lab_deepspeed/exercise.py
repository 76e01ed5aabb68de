"""Lab 05. Fill in the functions, then run `millstream course check lab-05`. None of them needs DeepSpeed."""

from __future__ import annotations

from typing import Any


def deepspeed_config(
    stage: int, batch: int, ranks: int, micro_batches: int, *, offload: bool, precision: str
) -> dict[str, Any]:
    """A configuration for DeepSpeed, as the dictionary that its JSON would be.

    `batch` rows of all ranks together, in so many micro-batches; `offload` moves the optimiser to host
    memory, stepped by torch's own Adam (`zero_force_ds_cpu_optimizer` false), so that nothing must be
    compiled; `precision` is fp32, bf16 or fp16.
    """
    raise NotImplementedError("deepspeed_config")


def state_bytes(parameters: int, stage: int, ranks: int, *, offload: bool) -> tuple[float, float]:
    """Bytes on a device and in host memory for it: mixed precision, 2 for a weight, 2 for a gradient, 12 for
    Adam."""
    raise NotImplementedError("state_bytes")


def smallest_stage(parameters: int, ranks: int, device_bytes: float) -> tuple[int, bool] | None:
    """The first of stages 0, 1, 2, 3, then 3 with offload, whose state fits a device, and whether it
    offloads; or None."""
    raise NotImplementedError("smallest_stage")
