"""Wan's decoder on the fast path: channels-last, a chunk's latents in one pass, one pass over memory between
convolutions.

Computes what the plain decoder does, with the same state in and out; an epoch's first latent comes alone.
Shapes: T frames, Y and X rows and columns, C channels; batch is 1. Frames are [T, Y, X, C].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.models.carry import VAEState
from millstream.models.wan.channels_last import (
    Convolution,
    ConvTail,
    FastLayers,
    SplitCanvas,
    TileBorders,
    rim_of,
)
from millstream.models.wan.vae import CausalConv, FrameAttention, Upsample, WanDecoder, WanResBlock
from millstream.ops.conv3 import PAST, TAPS
from millstream.ops.pictures import split_frames, sum_taps


class FastDecoder:
    def __init__(self, decoder: WanDecoder, own: Convolution | None, borders: TileBorders) -> None:
        self._decoder = decoder
        self._layers = FastLayers(decoder, own, borders)
        self._phases = {
            layer: four_phases(layer.conv.weight) for layer in decoder.up if isinstance(layer, Upsample)
        }
        self._taps = tap_rows(decoder.conv_out.weight)

    def __call__(self, z_1CTYX: Tensor, state: VAEState) -> tuple[Tensor, VAEState]:
        """Pixels [1, T, 3, Y, X], clamped."""
        self._layers.begin(z_1CTYX)
        tails = ConvTail(state)
        decoder = self._decoder
        z_TYXC = z_1CTYX[0].permute(1, 2, 3, 0).contiguous()
        parted = SplitCanvas(z_TYXC, z_TYXC.new_zeros(z_TYXC.shape[-1]))
        parted = self._layers.convolve(parted, None, decoder.conv_in, tails)
        for layer in (*decoder.middle, *decoder.up):
            parted = self._layer(layer, parted, tails)
        return self._show(parted, tails), tails.finish()

    def _layer(self, layer: nn.Module, parted: SplitCanvas, tails: ConvTail) -> SplitCanvas:
        if isinstance(layer, WanResBlock):
            return self._layers.res_block(layer, parted, tails)
        if isinstance(layer, Upsample):
            return self._upsample(layer, parted, tails)
        assert isinstance(layer, FrameAttention), f"no fast path for {type(layer).__name__}"
        return self._layers.attention(layer, parted)

    def _upsample(self, layer: Upsample, parted: SplitCanvas, tails: ConvTail) -> SplitCanvas:
        x_TYXC = (
            parted.whole() if layer.time_conv is None else self._more_frames(layer.time_conv, parted, tails)
        )
        x_TYXC, missing = self._layers.borders.surrounded(x_TYXC)
        y = (
            F.conv2d(x_TYXC.permute(0, 3, 1, 2), self._phases[layer], padding=missing)
            .permute(0, 2, 3, 1)
            .contiguous()
        )
        assert layer.conv.bias is not None
        return SplitCanvas(y.unflatten(-1, (4, -1)), layer.conv.bias)

    def _more_frames(self, time_conv: CausalConv, parted: SplitCanvas, tails: ConvTail) -> Tensor:
        """Return two frames for each one. An epoch's first frame stays single, and is not part of what the
        later ones see."""
        if not tails.starts_epoch:
            doubled = self._layers.convolve(parted, None, time_conv, tails)
            return split_frames(doubled.y, doubled.bias_C)
        x_TYXC = parted.whole()
        tails.keep(x_TYXC.new_zeros(PAST, *x_TYXC.shape[1:]))
        return x_TYXC

    def _show(self, parted: SplitCanvas, tails: ConvTail) -> Tensor:
        """Every tap of the last convolution as one product, then their sum."""
        decoder = self._decoder
        canvas, _ = self._layers.paint(parted, decoder.norm_out.weight, tails, pad=rim_of(decoder.conv_out))
        planes = (self._taps @ canvas.flatten(0, 2).t()).unflatten(-1, canvas.shape[:3])
        assert decoder.conv_out.bias is not None
        return sum_taps(planes, decoder.conv_out.bias, len(canvas) - PAST).transpose(0, 1)[None]


def four_phases(weight_OIYX: Tensor) -> Tensor:
    """Nearest doubling and a 3x3 convolution, as one 2x2 convolution of the small picture: [4 * O, I, 2, 2].

    Of two rows that a pixel's three rows fall on, the first or the second is hit twice, by the pixel's
    parity.
    """
    w = weight_OIYX.float()
    rows = [
        torch.stack([w[:, :, 0], w[:, :, 1] + w[:, :, 2]], 2),
        torch.stack([w[:, :, 0] + w[:, :, 1], w[:, :, 2]], 2),
    ]
    phases = [
        torch.stack(pair, -1)
        for r in rows
        for pair in ((r[..., 0], r[..., 1] + r[..., 2]), (r[..., 0] + r[..., 1], r[..., 2]))
    ]
    return torch.cat(phases).to(weight_OIYX.dtype).contiguous(memory_format=torch.channels_last)


def tap_rows(weight_OITYX: Tensor) -> Tensor:
    """A row for every tap and output, and zeros up to a multiple of 8, which products like: [27 * O rounded
    up, I]."""
    outer, inputs = weight_OITYX.shape[:2]
    rows = weight_OITYX.permute(2, 3, 4, 0, 1).reshape(TAPS * outer, inputs)
    return F.pad(rows, (0, 0, 0, -len(rows) % 8)).contiguous()
