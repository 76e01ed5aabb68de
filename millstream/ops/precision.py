"""Precision that a device multiplies in hardware. bfloat16 that is only emulated is many times slower than
float32."""

from __future__ import annotations

import os
import platform
from typing import Literal

import torch

from millstream.core.torch_settings import CPU_VARIABLE

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Dtypes that a model can be in, by name."""


def working_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on a GPU and on CPUs that multiply it in hardware, float32 elsewhere."""
    return torch.bfloat16 if device.type == "cuda" or cpu_has_bfloat16() else torch.float32


def mixed_precision(device: torch.device) -> torch.autocast:
    """Matmuls in the working dtype, whatever the parameters are."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=working_dtype(device) is torch.bfloat16)


def cpu_has_bfloat16() -> bool:
    if platform.machine() == "aarch64":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return cpu_kind() == "amx"


CPUKind = Literal["amx", "vnni", "avx2", "other"]


def cpu_kind() -> CPUKind:
    """Return the kind of this CPU, by what it multiplies quickly: bfloat16 and bytes (`amx`, or AVX-512 with
    bfloat16), bytes (`vnni`), float32 (`avx2`). The environment variable selects a slower kind."""
    if _cpu_has("amx_tile") or _cpu_has("avx512_bf16"):
        found: CPUKind = "amx"
    else:
        found = "vnni" if _cpu_has("vnni") else "avx2" if _cpu_has("avx2") else "other"
    asked = os.environ.get(CPU_VARIABLE, "")
    return asked if asked in _SLOWER.get(found, ()) else found  # type: ignore[return-value]


_SLOWER = {"amx": ("vnni", "avx2"), "vnni": ("avx2",)}


def _cpu_has(name: str) -> bool:
    return bool(getattr(torch.cpu, f"_is_{name}_supported", lambda: False)())
