"""A small decoder for previews, from a file in the layout of TAEHV for Wan 2.1: rougher pictures, many times
sooner.

The latents are the stream's own either way; the full VAE goes on encoding, and its pictures are what anchors
are made of. Of a file only what begins with `decoder.` is read, which must be, W being 256, 128 and 64 in
turn:
    1.weight [256, 16, 3, 3], 1.bias: from latents
    3, 4, 5 | 9, 10, 11 | 15, 16, 17: .conv.0.weight [W, 2W, 3, 3], .conv.2.weight and .conv.4.weight
        [W, W, 3, 3], with biases
    7.conv.weight [256, 256, 1, 1], 13.conv.weight [256, 128, 1, 1], 19.conv.weight [128, 64, 1, 1]
    8.weight [128, 256, 3, 3], 14.weight [64, 128, 3, 3], 20.weight [64, 64, 3, 3]
    22.weight [3, 64, 3, 3], 22.bias: to colours in [0, 1]
Numbers that are missing have no weights. Files called `lighttae...` have the same layout and take
latents that are not normalised; nothing in them says so, hence it goes by the name.
Shapes: T frames, latent or pixel by depth, C channels, Y and X rows and columns; batch is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.config import TEMPORAL_STRIDE, ModelSpec, VAEConfig
from millstream.core.errors import ConfigError, WeightsError
from millstream.models.carry import Carry, VAEState
from millstream.models.empty import empty_modules
from millstream.models.weights.files import Shape, find_shards, open_shard

_PREFIX = "decoder."
_RAW_LATENTS = "lighttae"
"""How names of files begin that were trained on latents as the VAE has them inside."""
_WIDTHS = (256, 128, 64)
_BOUND = 3.0
"""Latents are bent softly into plus and minus this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyDecoderConfig:
    channels: int = 16
    """Channels of latents."""
    widths: tuple[int, int, int] = _WIDTHS
    """Channels at an eighth, a quarter and half of the size."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    """Per latent channel, for a file that takes latents as the VAE has them inside; empty for one that takes
    the DiT's."""


class SoftBound(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x / _BOUND) * _BOUND


class PairBlock(nn.Module):
    """Each frame together with the one before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            _conv(2 * width, width), nn.ReLU(), _conv(width, width), nn.ReLU(), _conv(width, width)
        )  # numbered as in the file

    def forward(self, x_TCYX: Tensor, before_TCYX: Tensor) -> Tensor:
        return F.relu(self.conv(torch.cat([x_TCYX, before_TCYX], dim=1)) + x_TCYX)


class GrowFrames(nn.Module):
    """Several frames of each, one after the other."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self._count = count
        self.conv = nn.Conv2d(width, count * width, 1, bias=False)

    def forward(self, x_TCYX: Tensor) -> Tensor:
        return self.conv(x_TCYX).unflatten(1, (self._count, -1)).flatten(0, 1)


class TinyDecoder(nn.Module):
    """Parameters have the names of the file."""

    def __init__(self, config: TinyDecoderConfig) -> None:
        super().__init__()
        self.config = config
        wide, middle, narrow = config.widths
        layers: list[nn.Module] = [SoftBound(), _conv(config.channels, wide), nn.ReLU()]
        for width, next_width, frames in ((wide, middle, 1), (middle, narrow, 2), (narrow, narrow, 2)):
            layers += [PairBlock(width) for _ in range(3)]
            layers += [
                nn.Upsample(scale_factor=2.0),
                GrowFrames(width, frames),
                _conv(width, next_width, bias=False),
            ]
        self.decoder = nn.Sequential(*layers, nn.ReLU(), _conv(narrow, 3))

    def decode(self, latents_BFCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        """Pixels [1, T, 3, 8Y, 8X] in [-1, 1], as many as the full decoder's: of an epoch's first four, the
        last is shown."""
        assert latents_BFCYX.shape[0] == 1, f"one session at a time, got {latents_BFCYX.shape[0]}"
        carry = Carry(state)
        x_TCYX = self._as_trained(latents_BFCYX[0])
        for layer in self.decoder:
            x_TCYX = layer(x_TCYX, _before(x_TCYX, carry)) if isinstance(layer, PairBlock) else layer(x_TCYX)
        shown = x_TCYX[TEMPORAL_STRIDE - 1 :] if carry.starts_epoch else x_TCYX
        return (shown.clamp(0, 1) * 2 - 1)[None], carry.finish()

    def _as_trained(self, latents_TCYX: Tensor) -> Tensor:
        for figures, apply in ((self.config.std, torch.mul), (self.config.mean, torch.add)):
            if figures:
                latents_TCYX = apply(latents_TCYX, latents_TCYX.new_tensor(figures).view(-1, 1, 1))
        return latents_TCYX


class Encoding(Protocol):
    """The half of a VAE that previews leave as it is."""

    def encode(self, pixels_BTCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]: ...


class PreviewVAE:
    """In the place of a VAE, for sessions that encode none of the pictures they show."""

    def __init__(self, vae: Encoding, tiny: TinyDecoder) -> None:
        self._vae = vae
        self._tiny = tiny

    def encode(self, pixels_BTCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        return self._vae.encode(pixels_BTCYX, state)

    def decode(self, latents_BFCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        return self._tiny.decode(latents_BFCYX, state)


def load_tiny_decoder(
    path: Path,
    spec: ModelSpec,
    *,
    device: torch.device,
    dtype: torch.dtype,
    widths: tuple[int, int, int] = _WIDTHS,
) -> TinyDecoder:
    """From a file for latents of `spec`; one in any other layout is refused by its first difference."""
    vae = spec.vae
    if not (isinstance(vae, VAEConfig) and vae.has_fast_path):
        raise ConfigError(
            f"{spec.name} has no Wan 2.1 latents, which preview decoders are for; leave the preview decoder out"
        )
    if path.is_dir():
        raise WeightsError(f"{path} is a folder; give the preview decoder's file")
    [file] = find_shards(path)
    figures = dict(mean=vae.mean, std=vae.std) if path.name.startswith(_RAW_LATENTS) else {}
    with empty_modules():
        tiny = TinyDecoder(TinyDecoderConfig(channels=vae.channels, widths=widths, **figures))
    with open_shard(file) as shard:
        found = {name: info.shape for name, info in shard.infos.items() if name.startswith(_PREFIX)}
        _refuse_other_layout(
            file, {name: tuple(weight.shape) for name, weight in tiny.named_parameters()}, found
        )
        tiny.load_state_dict({name: _placed(shard.read(name), device, dtype) for name in found}, assign=True)
    return tiny.eval().requires_grad_(False)


def _placed(weight: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A copy, so that the file can be closed, in the order that convolutions read fastest."""
    order = torch.channels_last if weight.dim() == 4 else torch.contiguous_format
    return weight.to(device, dtype, copy=True, memory_format=order)


def _refuse_other_layout(path: Path, wanted: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    for name in (*wanted, *found):
        if name not in found:
            said = "is missing"
        elif name not in wanted:
            said = "has no place in it"
        elif found[name] != wanted[name]:
            said = f"is {list(found[name])}, not {list(wanted[name])}"
        else:
            continue
        raise WeightsError(
            f"{path} is no preview decoder for this model: {name} {said}; give a taew2_1 file for Wan 2.1"
        )


def _conv(inputs: int, outputs: int, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias)


def _before(x_TCYX: Tensor, carry: Carry) -> Tensor:
    """Each frame's predecessor; that of an epoch's first is zeros."""
    longer_CTYX = carry.extend(x_TCYX.transpose(0, 1)[None], 1)[0]
    return longer_CTYX[:, :-1].transpose(0, 1)
