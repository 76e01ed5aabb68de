"""Brook's blocks in 8 bits, for CPUs: linear layers over ranges measured on its own streams.

Attention, norms, the residual and the small layers before and after the blocks stay as they are, and so does
the decoder: bytes there made pictures flicker by a sixth more, and were hardly quicker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
from torch import nn

from millstream.core.errors import WeightsError
from millstream.core.files import Staging
from millstream.models.dit import CausalDiT
from millstream.ops.int8 import Int8Linear, Int8MLP, Range

Ranges = Mapping[str, Range]
"""Range of a layer's inputs by its name in the DiT: `blocks.0.ffn.up`."""
LAYERS = (
    "self_attn.q",
    "self_attn.k",
    "self_attn.v",
    "self_attn.o",
    "cross_attn.q",
    "cross_attn.o",
    "ffn.up",
    "ffn.down",
)
"""Layers of each block that are quantised. The prompt's keys and values are computed once for each prompt, in
full precision."""


def read_ranges(path: Path) -> Ranges:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Range])
    except (OSError, msgspec.DecodeError) as error:
        raise WeightsError(
            f"{path} cannot be read ({type(error).__name__}); run millstream train ranges or use fp32"
        ) from None


def write_ranges(path: Path, ranges: Ranges) -> None:
    with Staging(path.parent) as staging:
        lines = (
            f"  {json.dumps(name)}: [{low:.4g}, {high:.4g}]" for name, (low, high) in sorted(ranges.items())
        )
        staging.path(path.name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def int8_layers(dit: CausalDiT) -> dict[str, nn.Linear]:
    """Return the layers whose inputs become bytes, by name."""
    layers = {
        f"blocks.{number}.{name}": block.get_submodule(name)
        for number, block in enumerate(dit.blocks)
        for name in LAYERS
    }
    return {name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear)}


def quantise_blocks(dit: CausalDiT, ranges: Ranges) -> None:
    """Replace the blocks' linear layers by 8-bit ones, in place."""
    for name, plain in int8_layers(dit).items():
        dit.set_submodule(name, Int8Linear(plain, ranges[name]))
    for block in dit.blocks:
        up = block.ffn.get_submodule("up")
        down = block.ffn.get_submodule("down")
        assert isinstance(up, Int8Linear), "its first half is in bytes"
        assert isinstance(down, Int8Linear), "its second half is in bytes"
        block.set_submodule("ffn", Int8MLP(up, down))
