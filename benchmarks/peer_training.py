"""A training step by Self-Forcing's own code, from a checkout of it that is given. `benchmarks/train_step.py`
times it.

Its model, its schedule and its mask are imported from the checkout as they are; none of them is here. The
step is its training by diffusion forcing: a noise level for each chunk, the flow's weighted error, backward.
What this driver changes is told in `REPLACED` and in the row. Its packages' `__init__` files are passed over:
they import text encoders, tokenizers and pictures, which a step on random weights does not need.
Shapes: F frames, C latent channels, Y and X latent rows and columns.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.utils.checkpoint  # their model calls it without importing it
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from millstream.commands.report import blob_hash, source_digest
from millstream.core.config import DiTConfig
from millstream.core.errors import ConfigError

MODEL = "wan.modules.causal_model"
SCHEDULE = "utils.scheduler"
FLASH_OWNER = "wan.modules.model"
"""The module whose cross-attention calls flash-attn, and nothing else."""
NEEDED = (
    "wan/modules/causal_model.py",
    "wan/modules/model.py",
    "wan/modules/attention.py",
    "utils/scheduler.py",
)
BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
SHIFT = 5.0
LEVELS = 1000
"""Timestep shift and number of noise levels in the peer's own configuration."""
REPLACED = "flash-attn of its cross-attention by torch's scaled_dot_product_attention, cuDNN's kernel first"


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerStep:
    """One step that can be run again and again, and what must be known to judge its time."""

    run: Callable[[], None]
    model: nn.Module
    about: Mapping[str, Any]


def prepare(
    checkout: Path,
    dit: DiTConfig,
    *,
    frames: int,
    frames_per_chunk: int,
    latent_size: tuple[int, int],
    recompute: bool,
    device: torch.device,
) -> PeerStep:
    """Build its model with random weights in bfloat16, and one clip of noise to learn from."""
    causal, schedule = import_peer(checkout)
    replaced = replace_flash_attention()
    with torch.device(device):
        model: Any = causal.CausalWanModel(
            in_dim=dit.channels,
            out_dim=dit.channels,
            dim=dit.width,
            ffn_dim=dit.ffn,
            freq_dim=dit.time_features,
            text_dim=dit.text_width,
            text_len=dit.text_tokens,
            num_heads=dit.heads,
            num_layers=dit.layers,
        )
    model = model.to(torch.bfloat16)
    model.requires_grad_(requires_grad=True)
    with torch.no_grad():
        for weights in model.parameters():
            if (
                not weights.any()
            ):  # a head of zeros sends back gradients of zeros, which are cheaper to multiply
                weights.normal_(std=0.02)
    model.num_frame_per_block = frames_per_chunk
    model.gradient_checkpointing = recompute
    run = _step(model, schedule, dit, frames, frames_per_chunk, latent_size, device)
    about = {
        "recompute": "full" if recompute else "none",
        "weights": "random, in bfloat16, as are gradients; no optimiser",
        "replaced": replaced,
        "their_commit": _commit(checkout),
        "their_files": source_digest({name: blob_hash((checkout / name).read_bytes()) for name in NEEDED}),
        "diffusers": _version("diffusers"),
    }
    return PeerStep(run=run, model=model, about=about)


def _step(
    model: nn.Module,
    schedule: ModuleType,
    dit: DiTConfig,
    frames: int,
    frames_per_chunk: int,
    latent_size: tuple[int, int],
    device: torch.device,
) -> Callable[[], None]:
    scheduler = schedule.FlowMatchScheduler(shift=SHIFT, sigma_min=0.0, extra_one_step=True)
    scheduler.set_timesteps(LEVELS, training=True)
    levels = scheduler.timesteps.to(device)
    options: dict[str, Any] = dict(device=device, dtype=torch.bfloat16)
    clean_BFCYX = torch.randn(1, frames, dit.channels, *latent_size, **options)
    text = torch.randn(1, dit.text_tokens, dit.text_width, **options)
    tokens = frames * (latent_size[0] // dit.patch) * (latent_size[1] // dit.patch)

    def run() -> None:
        of_chunks = torch.randint(0, LEVELS, (1, frames // frames_per_chunk), device=device)
        level_BF = levels[of_chunks].repeat_interleave(frames_per_chunk, dim=1).to(torch.bfloat16)
        noise = torch.randn_like(clean_BFCYX)
        noisy = scheduler.add_noise(clean_BFCYX.flatten(0, 1), noise.flatten(0, 1), level_BF.flatten())
        noisy_BCFYX = noisy.unflatten(0, (1, frames)).transpose(1, 2)
        flow = model(noisy_BCFYX, t=level_BF, context=text, seq_len=tokens).transpose(1, 2)
        target = scheduler.training_target(clean_BFCYX, noise, level_BF)
        error = F.mse_loss(flow.float(), target.float(), reduction="none").mean(dim=(2, 3, 4))
        (error * scheduler.training_weight(level_BF).unflatten(0, (1, frames))).mean().backward()
        model.zero_grad(set_to_none=True)

    return run


def import_peer(checkout: Path) -> tuple[ModuleType, ModuleType]:
    """Import its causal model and its noise schedule, without what its packages import beside them."""
    missing = [name for name in NEEDED if not (checkout / name).is_file()]
    if missing:
        raise ConfigError(f"{checkout} is no checkout of Self-Forcing: it has no {missing[0]}")
    for name in ("wan", "wan.modules", "utils"):
        package = ModuleType(name)
        package.__path__ = [str(checkout / name.replace(".", "/"))]
        sys.modules[name] = package
    if "einops" not in sys.modules and importlib.util.find_spec("einops") is None:
        sys.modules["einops"] = _absent_einops()
    return importlib.import_module(MODEL), importlib.import_module(SCHEDULE)


def _absent_einops() -> ModuleType:
    """A stand-in where einops is not installed: their module imports one function of it that this step never
    calls."""

    def repeat(*_: object, **__: object) -> None:
        raise ConfigError("this part of Self-Forcing's code needs einops; pip install einops")

    module = ModuleType("einops")
    module.repeat = repeat  # type: ignore[attr-defined]
    return module


def replace_flash_attention() -> str:
    """Put torch's attention in the place of flash-attn where that is not installed; return what was
    replaced."""
    if (
        importlib.util.find_spec("flash_attn") is not None
        or importlib.util.find_spec("flash_attn_interface") is not None
    ):
        return ""
    owner = sys.modules[FLASH_OWNER]
    owner.flash_attention = attend  # type: ignore[attr-defined]
    return REPLACED


def attend(q: Tensor, k: Tensor, v: Tensor, k_lens: Tensor | None = None, **_: object) -> Tensor:
    """Attention over all keys, [B, L, N, H] as flash-attn has it."""
    assert k_lens is None or bool((k_lens == k.shape[1]).all()), "keys are padded, which this does not mask"
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    with sdpa_kernel(BACKENDS, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous()


def _commit(checkout: Path) -> str:
    """The checkout's commit, empty where git does not know it: `their_files` tells the code either way."""
    if not (checkout / ".git").exists():
        return ""
    asked = ["git", "rev-parse", "HEAD"]
    return subprocess.run(asked, cwd=checkout, capture_output=True, text=True, check=False).stdout.strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
