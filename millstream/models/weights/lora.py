"""LoRAs, in every spelling people train them in, merged into a DiT's weights for good, one weight at a time.

A file is checked as a whole before the first weight is merged. Adapters that stay apart from the weights, and
full weight differences, are not supported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from millstream.core.errors import WeightsError
from millstream.models.weights.files import Shape, Shard, open_shard
from millstream.models.weights.parts import canonical

_FACTOR = re.compile(
    r"(?P<layer>.+)\.(?P<role>lora_A|lora_B|lora_down|lora_up)(\.\w+)?\.weight$|(?P<scaled>.+)\.alpha$"
)
_ROLES = {"lora_A": "down", "lora_down": "down", "lora_B": "up", "lora_up": "up", None: "alpha"}
_KOHYA = "lora_unet_"
_SHOWN = 3

Merged = Callable[[str, Tensor], Tensor]
"""From a weight's name and its value to the weight with LoRAs in it."""


@dataclass(frozen=True, slots=True)
class LoRA:
    """An open file whose every layer fits the model. Layers go by the name of our weight."""

    shard: Shard
    layers: Mapping[str, Mapping[str, str]]
    """Names in the file of each layer's `down`, `up` and, where it has one, `alpha`."""
    scale: float

    def merged(self, name: str, weight: Tensor) -> Tensor:
        """The weight with this LoRA in it: summed in float32, returned in the weight's dtype."""
        if name not in self.layers:
            return weight
        factors = {role: self.shard.read(stored) for role, stored in self.layers[name].items()}
        down, up = (factors[role].to(weight.device, torch.float32).flatten(1) for role in ("down", "up"))
        rank = down.shape[0]
        alpha = factors["alpha"].item() if "alpha" in factors else rank
        delta = (up @ down) * (self.scale * alpha / rank)
        return (weight.float() + delta.view(weight.shape)).to(weight.dtype)


@contextmanager
def merging(loras: Sequence[tuple[Path, float]], shapes: Mapping[str, Shape]) -> Iterator[Merged]:
    """Open LoRAs, each with its scale, and yield a function that merges them into a weight of a DiT, in the
    order they are given. Weights go by our names."""
    with ExitStack() as stack:
        opened = [stack.enter_context(open_lora(path, shapes, scale=scale)) for path, scale in loras]

        def merged(name: str, weight: Tensor) -> Tensor:
            for lora in opened:
                weight = lora.merged(name, weight)
            return weight

        yield merged


@contextmanager
def open_lora(path: Path, shapes: Mapping[str, Shape], *, scale: float = 1.0) -> Iterator[LoRA]:
    """Raises unless every layer of the file is whole and fits one of `shapes`, which go by our names."""
    with open_shard(path) as shard:
        layers, problems = _sorted_layers(shard, shapes)
        for name, factors in layers.items():
            problems += _problems_of(name, factors, shard, shapes[name])
        if problems or not layers:
            said = ", ".join(problems[:_SHOWN]) + (
                f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            )
            raise WeightsError(
                f"{path} cannot be merged: {said or 'it holds no LoRA layers'}; use a LoRA made for this model"
            )
        yield LoRA(shard, layers, scale)


def _sorted_layers(shard: Shard, shapes: Mapping[str, Shape]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The file's tensors by our layer and role, and what has no place among them."""
    targets = _spellings(shapes)
    layers: dict[str, dict[str, str]] = {}
    problems = []
    for stored in shard.infos:
        match = _FACTOR.match(stored)
        target = targets.get(match["layer"] or match["scaled"]) if match else None
        if match is None:
            problems.append(_unsupported(stored))
        elif target is None:
            problems.append(f"{stored} is for a layer the model does not have")
        elif layers.setdefault(target, {}).setdefault(_ROLES[match["role"]], stored) != stored:
            problems.append(f"{stored} is there twice")
    return layers, problems


def _unsupported(stored: str) -> str:
    if stored.endswith((".diff", ".diff_b")):
        return f"{stored} is a full weight difference, which is not supported"
    return f"{stored} is no LoRA factor"


def _spellings(shapes: Mapping[str, Shape]) -> dict[str, str]:
    """Our weight for every name a layer goes by."""
    weights = [name for name, shape in shapes.items() if name.endswith(".weight") and len(shape) > 1]
    table: dict[str, str] = {}
    for layout in ("millstream", "original", "diffusers"):
        for ours, theirs in canonical("dit", layout, weights).items():
            layer = theirs.removesuffix(".weight")
            table[layer] = table[_KOHYA + layer.replace(".", "_")] = ours
    return table


def _problems_of(name: str, factors: Mapping[str, str], shard: Shard, weight: Shape) -> list[str]:
    if absent := {"down", "up"} - factors.keys():
        return [f"{next(iter(factors.values()))} has no {' or '.join(sorted(absent))} factor"]
    down, up = (shard.infos[factors[role]].shape for role in ("down", "up"))
    problems = []
    if len(down) < 2 or math.prod(down[1:]) != math.prod(weight[1:]):
        problems.append(f"{factors['down']} has shape {list(down)}, {name} is {list(weight)}")
    if len(up) < 2 or up[0] != weight[0] or math.prod(up[1:]) != down[0]:
        problems.append(
            f"{factors['up']} has shape {list(up)}, {name} is {list(weight)} and its down factor {list(down)}"
        )
    if "alpha" in factors and math.prod(shard.infos[factors["alpha"]].shape) != 1:
        problems.append(f"{factors['alpha']} is not one number")
    return problems
