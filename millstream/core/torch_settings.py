"""Environment variables that torch reads as it is loaded, set to what suits a stream. Those that are set
already are kept.

For programs of this project; one that imports `millstream` decides for itself.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import MutableMapping

from millstream.core.errors import ConfigError

KERNEL = platform.release()
CPU_VARIABLE = "MILLSTREAM_CPU"
"""`avx2`, `vnni` or `amx`: a CPU that could do more behaves as that one."""
CPU_LIMITS = {
    "amx": {},
    "vnni": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}
"""Variables for oneDNN, torch and MKL, by the value of `CPU_VARIABLE`."""


def settle_torch(
    environment: MutableMapping[str, str], *, system: str = sys.platform, kernel: str = KERNEL
) -> None:
    """Before torch is loaded.

    CUDA's memory grows in place where it can, so that what one kind of call leaves free another can use.
    cuDNN picks convolutions by its second heuristic: a VAE's are up to half as quick again, and a shape still
    has one algorithm, hence the same bits. A lost connection is said once, in our words. oneDNN leaves no map
    of its code in /tmp, as it does on ARM.
    """
    named = "PYTORCH_CUDA_ALLOC_CONF" in environment  # its name before it was every accelerator's
    if not named and memory_grows_in_place(system, kernel):
        environment.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    environment.setdefault("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "1")
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    environment.setdefault("ONEDNN_JIT_PROFILE", "0")
    if (asked := environment.get(CPU_VARIABLE)) is not None:
        if asked not in CPU_LIMITS:
            raise ConfigError(
                f"{CPU_VARIABLE} must be {', '.join(CPU_LIMITS)}, got {asked!r}; or leave it unset"
            )
        environment.update(CPU_LIMITS[asked])


def memory_grows_in_place(system: str, kernel: str) -> bool:
    """Return whether CUDA's driver maps memory piece by piece: not on Windows, and not for a Linux inside of
    it (WSL)."""
    return system == "linux" and "microsoft" not in kernel.lower()
