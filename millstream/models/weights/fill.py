"""Gives a module that was built on the meta device its parameters: from checkpoints, or random ones from a
seed.

Everything is checked before anything is allocated. Parameters come one after the other; what is kept of each
is up to the caller, so a share of a model takes the memory of that share and one parameter.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from millstream.models.wan.layouts import Part
from millstream.models.weights.files import LastShard, Shape
from millstream.models.weights.survey import refuse_misfit, survey
from millstream.models.weights.unread import unread

Device = torch.device | str
Keep = Callable[[str, Tensor], Tensor | None]
"""From a parameter's name and its whole value to what stays of it; None leaves it on the meta device."""
Later = Callable[[str], bool]
"""From a parameter's name to whether it stays in its file until it is needed (`unread.bring`)."""


def everything(name: str, whole: Tensor) -> Tensor:
    return whole


def nothing(name: str) -> bool:
    return False


class Filling:
    """A module whose parameters come one after the other, each whole, frozen, in one dtype."""

    def __init__(
        self,
        module: nn.Module,
        *,
        device: Device,
        dtype: torch.dtype,
        keep: Keep = everything,
        later: Later = nothing,
    ) -> None:
        self.shapes: dict[str, Shape] = {
            name: tuple(parameter.shape) for name, parameter in module.named_parameters()
        }
        """Shapes of the parameters that are to come, by name."""
        self._module = module
        self._device = device
        self._dtype = dtype
        self._keep = keep
        self._later = later

    def offer(self, name: str, read: Callable[[], Tensor]) -> None:
        """Fill a parameter now, or let it be read when it is needed."""
        if self._later(name):
            like = torch.empty(self.shapes[name], device="meta", dtype=self._dtype)
            put(self._module, name, unread(like, lambda: self._whole(name, read())))
        else:
            self.give(name, read())

    def give(self, name: str, values: Tensor) -> None:
        """Fill a parameter with a copy of `values`, which may be a view of a file."""
        whole = self._whole(name, values)
        kept = self._keep(name, whole)
        if kept is None:
            return
        put(
            self._module,
            name,
            frozen(kept if kept is whole else kept.clone(memory_format=torch.contiguous_format)),
        )

    def _whole(self, name: str, values: Tensor) -> Tensor:
        assert tuple(values.shape) == self.shapes[name], (
            f"{name} is {tuple(values.shape)}, not {self.shapes[name]}"
        )
        return torch.empty(values.shape, device=self._device, dtype=self._dtype).copy_(values)

    def done(self) -> None:
        assert not any(tensor.is_meta for tensor in self._module.buffers()), (
            "checkpoints fill parameters, not buffers"
        )
        self._module.eval()


def fill(
    module: nn.Module,
    part: Part,
    sources: Sequence[Path],
    *,
    device: Device,
    dtype: torch.dtype,
    prefer_ema: bool = True,
    keep: Keep = everything,
    later: Later = nothing,
) -> None:
    """Read `sources`, of any known layout, into `module`. Raises before touching it if they do not fit
    exactly."""
    filling = Filling(module, device=device, dtype=dtype, keep=keep, later=later)
    result = survey(part, filling.shapes, sources, prefer_ema=prefer_ema)
    refuse_misfit(result, part, sources, allow_unexpected=False)
    last = LastShard(prefer_ema=prefer_ema)
    for ours, place in result.places.items():
        filling.offer(ours, partial(last.read, place.path, place.name))
    filling.done()


def fill_random(
    module: nn.Module,
    *,
    seed: int,
    device: Device,
    dtype: torch.dtype,
    keep: Keep = everything,
    later: Later = nothing,
) -> None:
    """Untrained weights. Each parameter depends on the seed and its own name only."""
    filling = Filling(module, device=device, dtype=dtype, keep=keep, later=later)
    for name, shape in filling.shapes.items():
        filling.offer(name, partial(_random, name, shape, seed, torch.device(device)))
    filling.done()


def frozen(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def put(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """In place of the one of that name; a layer whose share it is says so."""
    owner, _, leaf = name.rpartition(".")
    layer = module.get_submodule(owner)
    setattr(layer, leaf, parameter)
    if isinstance(layer, nn.Linear) and leaf == "weight":
        layer.out_features, layer.in_features = parameter.shape


def _random(name: str, shape: Shape, seed: int, device: torch.device) -> Tensor:
    """Drawn in float32. Biases are 0, norms (one number a channel) 1, the rest keeps the scale of what passes
    through."""
    if name.endswith("bias"):
        return torch.zeros(shape, device=device)
    fan_in = shape[-1] if name.endswith("modulation") else math.prod(shape) // shape[0]
    if fan_in == 1:
        return torch.ones(shape, device=device)
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randn(shape, generator=generator, device=device).mul_(fan_in**-0.5)
