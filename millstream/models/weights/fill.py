"""Gives a module that was built on the meta device its parameters: from checkpoints, or random ones from a seed.

Everything is checked before anything is allocated. Beyond the model itself, at most one shard is held.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from millstream.models.wan.layouts import Part
from millstream.models.weights.files import open_shard
from millstream.models.weights.parts import ALIASES
from millstream.models.weights.survey import Place, refuse_misfit, survey

Device = torch.device | str


def fill(
    module: nn.Module,
    part: Part,
    sources: Sequence[Path],
    *,
    device: Device,
    dtype: torch.dtype,
    prefer_ema: bool = True,
) -> None:
    """Read `sources`, of any known layout, into `module`. Raises before touching it if they do not fit exactly."""
    wanted = {name: tuple(parameter.shape) for name, parameter in _named(module).items()}
    result = survey(part, wanted, sources, prefer_ema=prefer_ema)
    refuse_misfit(result, part, sources, allow_unexpected=False)
    parameters = allocate(module, device, dtype)
    for path, group in itertools.groupby(result.places.items(), key=_file):
        with open_shard(path, prefer_ema=prefer_ema) as shard:
            for ours, place in group:
                parameters[ours].copy_(shard.read(place.name))


def fill_random(module: nn.Module, *, seed: int, device: Device, dtype: torch.dtype) -> None:
    """Untrained weights. Each parameter depends on the seed and its own name only."""
    for name, parameter in allocate(module, device, dtype).items():
        parameter.copy_(_random(name, tuple(parameter.shape), seed, torch.device(device)))


def _random(name: str, shape: tuple[int, ...], seed: int, device: torch.device) -> Tensor:
    """Drawn in float32. Biases are 0, norms (one number a channel) 1, the rest keeps the scale of what passes through."""
    if name.endswith("bias"):
        return torch.zeros(shape, device=device)
    fan_in = shape[-1] if name.endswith("modulation") else math.prod(shape) // shape[0]
    if fan_in == 1:
        return torch.ones(shape, device=device)
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randn(shape, generator=generator, device=device).mul_(fan_in**-0.5)


def allocate(module: nn.Module, device: Device, dtype: torch.dtype) -> dict[str, nn.Parameter]:
    """Uninitialised, frozen parameters in place of the module's own; what was tied stays tied."""
    parameters = {
        name: nn.Parameter(torch.empty(old.shape, device=device, dtype=dtype), requires_grad=False)
        for name, old in _named(module).items()
    }
    for name, _ in list(module.named_parameters(remove_duplicate=False)):
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, parameters[ALIASES.get(name, name)])
    assert not any(tensor.is_meta for tensor in module.buffers()), "checkpoints fill parameters, not buffers"
    module.eval()
    return parameters


def _named(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: old for name, old in module.named_parameters(remove_duplicate=False) if name not in ALIASES}


def _file(item: tuple[str, Place]) -> Path:
    return item[1].path
