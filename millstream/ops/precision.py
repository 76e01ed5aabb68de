"""Which precision a device multiplies in hardware. bfloat16 that is only emulated is many times slower than float32."""

from __future__ import annotations

import platform

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""That a model can be in, by name."""


def working_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU and on CPUs that multiply it in hardware, float32 elsewhere."""
    return torch.bfloat16 if device.type == "cuda" or cpu_has_bfloat16() else torch.float32


def mixed_precision(device: torch.device) -> torch.autocast:
    """Products in the working dtype, whatever the parameters are."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=working_dtype(device) is torch.bfloat16)


def cpu_has_bfloat16() -> bool:
    if platform.machine() == "aarch64":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    cpu = getattr(torch, "cpu", None)
    return any(bool(getattr(cpu, name, lambda: False)()) for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"))
