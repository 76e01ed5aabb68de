"""Wan's encoder on the fast path: channels-last, a chunk's frames in one pass, one pass over memory between
convolutions.

Computes what the plain encoder does, with the same state in and out; an epoch's first frame comes alone.
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
    library_convolution,
    rim_of,
)
from millstream.models.wan.vae import Downsample, FrameAttention, WanEncoder, WanResBlock

_ROUND = 8
"""Channels come in multiples of it where products are quick: 16 bytes of bfloat16."""


class FastEncoder:
    def __init__(self, encoder: WanEncoder, own: Convolution | None, borders: TileBorders) -> None:
        self._encoder = encoder
        self._layers = FastLayers(encoder, own, borders)
        self._first = with_round_inputs(encoder.conv_in.weight)
        for layer in encoder.down:
            if isinstance(layer, Downsample):
                layer.conv.weight.data = layer.conv.weight.data.contiguous(memory_format=torch.channels_last)

    def __call__(self, pixels_1TCYX: Tensor, state: VAEState) -> tuple[Tensor, VAEState]:
        """The encoder's answer [1, C, T / 4, Y / 8, X / 8]; one frame for an epoch's first."""
        self._layers.begin(pixels_1TCYX)
        tails = ConvTail(state)
        encoder = self._encoder
        canvas = self._layers.colours(
            pixels_1TCYX[0], self._first.shape[1], tails, pad=rim_of(encoder.conv_in)
        )
        parted = library_convolution(canvas, self._first, encoder.conv_in)
        for layer in (*encoder.down, *encoder.middle):
            parted = self._layer(layer, parted, tails)
        moments_TYXC = self._layers.convolve(parted, encoder.norm_out.weight, encoder.conv_out, tails).whole()
        return moments_TYXC.permute(3, 0, 1, 2)[None], tails.finish()

    def _layer(self, layer: nn.Module, parted: SplitCanvas, tails: ConvTail) -> SplitCanvas:
        if isinstance(layer, WanResBlock):
            return self._layers.res_block(layer, parted, tails)
        if isinstance(layer, Downsample):
            return self._downsample(layer, parted, tails)
        assert isinstance(layer, FrameAttention), f"no fast path for {type(layer).__name__}"
        return self._layers.attention(layer, parted)

    def _downsample(self, layer: Downsample, parted: SplitCanvas, tails: ConvTail) -> SplitCanvas:
        """The stride begins at a picture's first pixel, so its last taps lie on the edge beyond the last."""
        x_TCYX = self._layers.with_edge(parted).permute(0, 3, 1, 2)
        y_TYXC = F.conv2d(x_TCYX, layer.conv.weight, stride=2).permute(0, 2, 3, 1).contiguous()
        assert layer.conv.bias is not None
        smaller = SplitCanvas(y_TYXC, layer.conv.bias)
        return smaller if layer.time_conv is None else self._fewer_frames(layer.time_conv, smaller, tails)

    def _fewer_frames(self, time_conv: nn.Conv3d, parted: SplitCanvas, tails: ConvTail) -> SplitCanvas:
        """Return one frame for every two. An epoch's first frame stays as it is."""
        if not tails.starts_epoch:
            return self._layers.convolve(parted, None, time_conv, tails)
        x_TYXC = parted.whole()
        tails.keep(x_TYXC)
        return SplitCanvas(x_TYXC, torch.zeros_like(parted.bias_C))


def with_round_inputs(weight_OITYX: Tensor) -> Tensor:
    """Return the weight of the same convolution with input channels of zeros appended, up to a round
    number."""
    missing = -weight_OITYX.shape[1] % _ROUND
    return F.pad(weight_OITYX, (0, 0, 0, 0, 0, 0, 0, missing)).contiguous(
        memory_format=torch.channels_last_3d
    )
