"""The machine that a result was measured on, told apart from others by more than what its kernel calls it.

A virtual machine's kernel may give a whole family of processors one name ("Intel(R) Xeon(R) Processor"), and
on ARM it gives numbers: so the model's numbers and those instructions that decide how fast a model runs are
told beside the name.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import torch

from millstream.core.torch_settings import CPU_VARIABLE

CPUINFO = Path("/proc/cpuinfo")
FLAGS = (
    "avx2",
    "avx512f",
    "avx_vnni",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
    "sve2",
)
"""Instructions that change which path a matmul takes: integer dot products, half precision, matrix units."""
ARM_PARTS = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd05"): "Cortex-A55",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd84"): "Neoverse-V3",
    ("0x41", "0xd8e"): "Neoverse-N3",
    ("0x46", "0x001"): "A64FX",
    ("0x48", "0xd01"): "Kunpeng-920",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1a",
}
"""Names of ARM processors by implementer and part, as Arm's manuals and Linux's `lscpu` have them."""


def hardware() -> dict[str, Any]:
    """The machine as a result names it."""
    found: dict[str, Any] = {
        **describe_cpu(_cpuinfo()),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if held_to := os.environ.get(CPU_VARIABLE):
        found["cpu_held_to"] = held_to
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def machine_line() -> str:
    """The machine in one line, for a row of a result whose other rows may be of another machine."""
    found = hardware()
    flags = " ".join(found["cpu_flags"])
    cpu = ", ".join(
        part for part in (found["cpu"], found["cpu_model"], flags, f"{found['cores']} cores") if part
    )
    return f"{found['gpu']}; {cpu}" if "gpu" in found else cpu


def describe_cpu(cpuinfo: str) -> dict[str, Any]:
    """Name, model numbers and telling instructions of a processor, from what Linux says of it."""
    fields = _fields(cpuinfo)
    flags = f"{fields.get('flags', '')} {fields.get('Features', '')}".split()
    return {
        "cpu": _name(fields),
        "cpu_model": _model(fields),
        "cpu_flags": [flag for flag in FLAGS if flag in flags],
    }


def _cpuinfo() -> str:
    try:
        return CPUINFO.read_text()
    except OSError:
        return ""


def _fields(cpuinfo: str) -> dict[str, str]:
    """Parse the first processor's block of /proc/cpuinfo into names and values."""
    first = re.split(r"\n\s*\n", cpuinfo.strip())[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _name(fields: dict[str, str]) -> str:
    if named := fields.get("model name"):
        return named
    if part := fields.get("CPU part"):
        implementer = fields.get("CPU implementer", "")
        return ARM_PARTS.get((implementer, part), f"ARM part {part} of implementer {implementer}")
    return platform.processor() or platform.machine()


def _model(fields: dict[str, str]) -> str:
    names = {
        "cpu family": "family",
        "model": "model",
        "stepping": "stepping",
        "CPU implementer": "implementer",
        "CPU part": "part",
        "CPU variant": "variant",
        "CPU revision": "revision",
    }
    return ", ".join(f"{short} {fields[name]}" for name, short in names.items() if name in fields)
