"""Choice of the speed-ups that a model on a device can use: what `--fast auto` stands for, and what is left
of what was asked.

Decides and loads nothing. How a speed-up is applied is in `models/fast/apply.py`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch

from millstream.core.config import ModelSpec, VAEConfig
from millstream.core.speed import ALL, Speed
from millstream.core.topology import Topology
from millstream.models.brook.files import NOTHING, Beside
from millstream.ops import int8
from millstream.ops.backend import has_triton
from millstream.ops.conv3 import find_convolution
from millstream.ops.precision import cpu_kind
from millstream.ops.waves import HEAD_WIDTH

log = logging.getLogger(__name__)

FIRST_CAPABILITY = (8, 0)
"""GPUs that multiply bfloat16 and have cuDNN's attention."""
MAX_HEAD_WIDTH = 128
HEAD_MULTIPLE = 8
"""Heads whose sums of exponentials cuDNN gives."""
BYTES_ARE_QUICKER = ("vnni", "avx2")
"""Kinds of CPU on which they are: quicker than float32. bfloat16 in hardware is as quick."""


def automatic_speed(
    device: torch.device,
    dtype: torch.dtype,
    topology: Topology,
    *,
    plain_blocks: bool = False,
    beside: Beside = NOTHING,
) -> Speed:
    """Everything that costs no quality, on one GPU in bfloat16; on a CPU what makes Brook live there; the
    plain path elsewhere.

    float32 is left plain too: whoever asks for it wants the numbers rather than the speed.
    `plain_blocks` are for what works on nothing else: a stream batch, a compiler.
    """
    if device.type == "cpu" and topology.is_local:
        quick = int8.is_available() and cpu_kind() in BYTES_ARE_QUICKER and not plain_blocks
        return Speed(
            int8=quick and beside.ranges is not None,
            thin_decoder=beside.thin_decoder is not None,
        )
    if device.type != "cuda" or dtype != torch.bfloat16 or not topology.is_local:
        return Speed()
    if not has_triton() or torch.cuda.get_device_capability(device) < FIRST_CAPABILITY:
        return Speed()
    speed = ALL
    if plain_blocks:
        speed = replace(speed, blocks=False, round_keys=False, even_waves=False, graphs=False)
    return speed


def fitting_speed(
    asked: Speed, spec: ModelSpec, device: torch.device, dtype: torch.dtype, *, beside: Beside = NOTHING
) -> Speed:
    """Return the asked speed-ups that this model has a use for on this device. The rest is left plain and
    logged in one line."""
    reasons = {name: why for name in asked.names if (why := _why_not(name, spec, device, dtype, beside))}
    if reasons:
        log.info("left plain: %s", "; ".join(f"{name}, since {why}" for name, why in reasons.items()))
    plain: dict[str, Any] = dict.fromkeys(reasons, False)
    return replace(asked, **plain)


def _why_not(name: str, spec: ModelSpec, device: torch.device, dtype: torch.dtype, beside: Beside) -> str:
    """Empty where it can be."""
    if name == "int8" and (device.type != "cpu" or not int8.is_available()):
        return "its products are oneDNN's, on a CPU"
    if name == "int8" and dtype != torch.float32:
        return "bytes stand for float32"
    if name == "int8" and beside.ranges is None:
        return f"no ranges were measured for these weights of {spec.name}"
    if name == "thin_decoder" and beside.thin_decoder is None:
        return f"these weights of {spec.name} have none"
    if name in ("decoder", "own_convolution") and not isinstance(spec.vae, VAEConfig):
        return f"{spec.name} has a VAE of its own"
    if name in ("decoder", "own_convolution") and not spec.vae.has_fast_path:
        return f"the VAE of {spec.name} has no fast path yet"
    if name in ("even_waves", "graphs", "own_convolution") and device.type != "cuda":
        return "there is no GPU"
    if name == "own_convolution" and (dtype != torch.bfloat16 or find_convolution() is None):
        return "the library's convolution serves"
    if name == "even_waves" and spec.dit.head_width != HEAD_WIDTH:
        return f"waves are counted for heads of {HEAD_WIDTH}"
    if name in ("round_keys", "even_waves") and device.type == "cuda":
        if dtype != torch.bfloat16:
            return "attention gives its sums in bfloat16 alone"
        if spec.dit.head_width > MAX_HEAD_WIDTH or spec.dit.head_width % HEAD_MULTIPLE:
            return f"attention gives no sums of heads of {spec.dit.head_width}"
    return ""
