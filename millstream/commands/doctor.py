"""`millstream doctor`: what is here, what is missing, and how to get it."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, replace
from importlib import metadata

import torch
from torch.backends import cuda as cuda_backends

from millstream import __version__
from millstream.commands.memory import GIB, free_bytes
from millstream.commands.paths import models_folder
from millstream.core.config import VAEConfig
from millstream.core.errors import WeightsError
from millstream.core.presets import MODELS
from millstream.models.dit import CausalDiT
from millstream.models.weights.locate import locate
from millstream.ops.precision import cpu_has_bfloat16
from millstream.parallel.compiled import explain_blocks
from millstream.server.video_encoders import available_codecs


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing looked at."""

    area: str
    name: str
    found: str
    ok: bool = True
    fix: str = ""


def examine() -> list[Finding]:
    return [*_software(), *_cpu(), *_gpus(), *_compiler(), *_codecs(), *_weights()]


def as_json(findings: list[Finding]) -> list[dict[str, object]]:
    return [asdict(finding) for finding in findings]


def _software() -> list[Finding]:
    names = ("torch", "transformers", "safetensors", "msgspec", "av")
    return [
        Finding(area="software", name="python", found=platform.python_version()),
        Finding(area="software", name="millstream", found=__version__),
        *map(_package, names),
    ]


def _package(name: str) -> Finding:
    try:
        return Finding(area="software", name=name, found=metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(area="software", name=name, found="not installed", ok=False, fix=f"pip install {name}")


def _cpu() -> list[Finding]:
    free = free_bytes(torch.device("cpu")) / GIB
    quick = cpu_has_bfloat16()
    return [
        Finding(area="cpu", name="cores", found=f"{os.cpu_count()}, torch uses {torch.get_num_threads()} threads"),
        Finding(area="cpu", name="memory", found=f"{free:.1f} GiB free"),
        Finding(
            area="cpu",
            name="bfloat16",
            found="in hardware" if quick else "not in hardware",
            ok=quick,
            fix="" if quick else "float32 is used instead, at about half the speed or less",
        ),
    ]


def _gpus() -> list[Finding]:
    if not torch.cuda.is_available():
        reason = "this build of torch has no CUDA" if torch.version.cuda is None else "no NVIDIA GPU or driver"
        fix = "small models stream on the CPU; for a Wan model use a machine with an NVIDIA GPU and a CUDA build of torch"
        return [Finding(area="gpu", name="cuda", found=reason, ok=False, fix=fix)]
    devices = [
        Finding(
            area="gpu",
            name=f"cuda:{index}",
            found=f"{torch.cuda.get_device_name(index)}, {free_bytes(torch.device('cuda', index)) / GIB:.1f} GiB free",
        )
        for index in range(torch.cuda.device_count())
    ]
    cudnn = cuda_backends.cudnn_sdp_enabled() and torch.backends.cudnn.is_available()
    attention = Finding(
        area="gpu",
        name="attention",
        found="cuDNN" if cudnn else "flash",
        ok=cudnn,
        fix="" if cudnn else "install a torch build with cuDNN: attention is up to 1.6 times faster",
    )
    return [*devices, attention]


def _compiler() -> list[Finding]:
    """Whether this build of torch compiles the blocks whole; a graph break is named with the line it stands at."""
    breaks = explain_blocks(CausalDiT(replace(MODELS["wan-tiny"].dit, layers=1)))
    found = [
        Finding(area="compiler", name="graph break", found=line, ok=False, fix="let the compiler see what that line does")
        for line in breaks
    ]
    return found or [Finding(area="compiler", name="blocks", found="compile whole")]


def _codecs() -> list[Finding]:
    return [
        Finding(area="video", name=name, found="yes" if there else "no", ok=there, fix="" if there else "reinstall av (PyAV)")
        for name, there in available_codecs().items()
    ]


def _weights() -> list[Finding]:
    return [_weights_of(name) for name in sorted(MODELS) if isinstance(MODELS[name].vae, VAEConfig)]


def _weights_of(model: str) -> Finding:
    folder = models_folder() / model
    if not folder.is_dir():
        fix = f"millstream convert SOURCE {folder}, or run it untrained with --weights random"
        return Finding(area="weights", name=model, found="none", ok=False, fix=fix)
    try:
        files = locate([folder])
    except WeightsError as error:
        return Finding(area="weights", name=model, found="unreadable", ok=False, fix=str(error))
    missing = [part for part in ("dit", "vae", "text", "tokenizer") if not getattr(files, part)]
    if missing:
        fix = f"convert the missing parts into {folder} as well"
        return Finding(area="weights", name=model, found=f"{folder}, without {', '.join(missing)}", ok=False, fix=fix)
    return Finding(area="weights", name=model, found=str(folder))
