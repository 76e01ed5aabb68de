"""Checks of `doctor` that need torch: its build, the CPU's instructions for matmuls, GPUs, the compiler,
weights."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.backends import cuda as cuda_backends

from millstream.commands.doctor.findings import DoctorFinding
from millstream.commands.memory import free_bytes, least_bytes
from millstream.commands.paths import models_folder
from millstream.core.config import GIB, VAEConfig
from millstream.core.errors import WeightsError
from millstream.core.presets import MODELS
from millstream.models.dit import CausalDiT
from millstream.models.weights.locate import locate
from millstream.ops.backend import has_triton
from millstream.ops.precision import cpu_has_bfloat16
from millstream.parallel.compiled import explain_blocks

CUDA_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cu130"
"""The build that docs/install.md names as tested."""
DRIVER = Path("/sys/module/nvidia/version")
INSTRUCTIONS = {
    "AMX": "_is_amx_tile_supported",
    "AVX-512 bf16": "_is_avx512_bf16_supported",
    "VNNI": "_is_vnni_supported",
    "AVX-512": "_is_avx512_supported",
    "AVX2": "_is_avx2_supported",
}
"""The best first, by what torch calls the question."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuda:
    """State of NVIDIA GPUs, by torch and the system."""

    build: str | None
    """The CUDA that torch was built for."""
    driver: str | None
    devices: tuple[str, ...]
    """GPUs that torch can use."""
    cudnn: bool
    """True if attention can be cuDNN's."""
    triton: bool
    nvcc: bool


def examine() -> list[DoctorFinding]:
    return [
        check_torch(torch.__version__, torch.version.cuda),
        *_cpu(),
        *check_gpus(find_cuda()),
        *_compiler(),
        *_weights(),
    ]


def check_torch(version: str, cuda: str | None) -> DoctorFinding:
    found = f"{version}, {f'for CUDA {cuda}' if cuda else 'for the CPU'}"
    return DoctorFinding(area="software", name="torch's build", found=found)


def _cpu() -> list[DoctorFinding]:
    quick = cpu_has_bfloat16()
    return [
        DoctorFinding(
            area="cpu", name="cores", found=f"{os.cpu_count()}, torch uses {torch.get_num_threads()} threads"
        ),
        DoctorFinding(area="cpu", name="instructions", found=instructions(platform.machine(), _cpu_has)),
        DoctorFinding(
            area="cpu",
            name="bfloat16",
            found="in hardware" if quick else "not in hardware",
            ok=quick,
            fix="" if quick else "float32 is used instead, at about half the speed or less",
        ),
        check_memory(free_bytes(torch.device("cpu"))),
    ]


def _cpu_has(question: str) -> bool:
    return bool(getattr(torch.cpu, question, lambda: False)())


def instructions(machine: str, has: Callable[[str], bool]) -> str:
    """List the CPU instructions that decide how fast Brook is."""
    found = [name for name, question in INSTRUCTIONS.items() if has(question)]
    return f"{machine}: {', '.join(found) or 'none of ' + ', '.join(INSTRUCTIONS)}"


def check_memory(free: int) -> DoctorFinding:
    """Against what the bundled model needs at least."""
    brook = MODELS["brook"]
    least = least_bytes(brook, brook.stream, torch.float32, text="none")
    ok = free >= least
    fix = (
        ""
        if ok
        else f"Brook alone needs {least / GIB:.1f} GiB: close other programs, or use a larger machine"
    )
    return DoctorFinding(
        area="cpu", name="memory", found=f"{free / GIB:.1f} GiB free", ok=ok, needed=True, fix=fix
    )


def find_cuda() -> Cuda:
    devices = [
        torch.device("cuda", index)
        for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    ]
    return Cuda(
        build=torch.version.cuda,
        driver=DRIVER.read_text().strip() if DRIVER.exists() else None,
        devices=tuple(
            f"{torch.cuda.get_device_name(each)}, {free_bytes(each) / GIB:.1f} GiB free" for each in devices
        ),
        cudnn=cuda_backends.cudnn_sdp_enabled() and torch.backends.cudnn.is_available(),
        triton=has_triton(),
        nvcc=shutil.which("nvcc") is not None,
    )


def check_gpus(cuda: Cuda) -> list[DoctorFinding]:
    if not cuda.devices:
        return [_no_gpu(cuda)]
    devices = [
        DoctorFinding(area="gpu", name=f"cuda:{index}", found=found)
        for index, found in enumerate(cuda.devices)
    ]
    return [
        *devices,
        DoctorFinding(area="gpu", name="driver", found=cuda.driver or "of an unknown version"),
        DoctorFinding(
            area="gpu",
            name="attention",
            found="cuDNN" if cuda.cudnn else "flash",
            ok=cuda.cudnn,
            fix="" if cuda.cudnn else "install a torch build with cuDNN: attention is up to 1.6 times faster",
        ),
        DoctorFinding(
            area="gpu",
            name="triton",
            found="yes" if cuda.triton else "not installed",
            ok=cuda.triton,
            fix="" if cuda.triton else "pip install 'millstream[gpu]': without it --fast is off",
        ),
        DoctorFinding(
            area="gpu",
            name="nvcc",
            found="yes" if cuda.nvcc else "not on the path",
            ok=cuda.nvcc,
            fix=""
            if cuda.nvcc
            else "install the CUDA toolkit: on Hopper the VAE's own convolution is built with it",
        ),
    ]


def _no_gpu(cuda: Cuda) -> DoctorFinding:
    if cuda.driver is None:
        found = (
            "no NVIDIA GPU or driver"
            if cuda.build
            else "no NVIDIA driver, and this build of torch has no CUDA"
        )
        fix = (
            "small models stream on the CPU; for a Wan model use a machine with an NVIDIA GPU, its "
            f"driver, and: {CUDA_TORCH}"
        )
    elif cuda.build is None:
        found = f"driver {cuda.driver}, but this build of torch has no CUDA"
        fix = CUDA_TORCH
    else:
        found = f"driver {cuda.driver}, but torch for CUDA {cuda.build} sees no GPU"
        fix = (
            "update the driver to one for that CUDA, or let the container see the GPU (docker run --gpus all)"
        )
    return DoctorFinding(area="gpu", name="cuda", found=found, ok=False, fix=fix)


def _compiler() -> list[DoctorFinding]:
    """Check that this build of torch compiles the blocks whole; a graph break is reported with the line it is
    at."""
    breaks = explain_blocks(CausalDiT(replace(MODELS["wan-tiny"].dit, layers=1)))
    found = [
        DoctorFinding(
            area="compiler",
            name="graph break",
            found=line,
            ok=False,
            fix="let the compiler see what that line does",
        )
        for line in breaks
    ]
    return found or [DoctorFinding(area="compiler", name="blocks", found="compile whole")]


def _weights() -> list[DoctorFinding]:
    return [_weights_of(name) for name in sorted(MODELS) if isinstance(MODELS[name].vae, VAEConfig)]


def _weights_of(model: str) -> DoctorFinding:
    folder = models_folder() / model
    if not folder.is_dir():
        fix = f"millstream convert SOURCE {folder}, or run it untrained with --weights random"
        return DoctorFinding(area="weights", name=model, found="none", ok=False, fix=fix)
    try:
        files = locate([folder])
    except WeightsError as error:
        return DoctorFinding(area="weights", name=model, found="unreadable", ok=False, fix=str(error))
    missing = [part for part in ("dit", "vae", "text", "tokenizer") if not getattr(files, part)]
    if missing:
        fix = f"convert the missing parts into {folder} as well"
        return DoctorFinding(
            area="weights", name=model, found=f"{folder}, without {', '.join(missing)}", ok=False, fix=fix
        )
    return DoctorFinding(area="weights", name=model, found=str(folder))
