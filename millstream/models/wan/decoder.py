"""Wan's decoder on the fast path: channels-last, a chunk's latents in one pass, one pass over memory between convolutions.

Takes a loaded VAE and computes what its decoder does, with the same state in and out: a stream may change from one to
the other at any chunk. The epoch's first latent frame, which stands for a single picture, is left to the plain decoder.
Holds canvases, the inputs of convolutions, one for each size and number of channels; nothing in them outlives a call.
Shapes: T frames, Y and X rows and columns, C channels; batch is 1. Frames are [T, Y, X, C].
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.models.carry import VAEState
from millstream.models.wan.vae import CausalConv, FrameAttention, ResBlock, Upsample, WanVAE
from millstream.ops.pictures import PAST, TAPS, inner, merge_onto, split_frames, sum_taps


class Convolution(Protocol):
    """Another 3x3x3 convolution than the library's, for the weights it can."""

    def pack(self, weight_OITYX: Tensor) -> Tensor | None:
        """A weight as it reads it, or None if it cannot."""

    def __call__(self, canvas: Tensor, packed_weight: Tensor) -> Tensor:
        """[T, Y, X, C] of a canvas with a rim of one pixel."""


class Parted(NamedTuple):
    """A layer's answer before bias and residual are added: the next pass over it does that."""

    y: Tensor
    bias_C: Tensor
    residual_TYXC: Tensor | None = None


class Tails:
    """Hands each causal layer of one pass its past and collects the new ones, as `Carry` does for the plain layers."""

    def __init__(self, state: VAEState) -> None:
        self._old = iter(state)
        self._new: list[Tensor] = []

    def enter(self, canvas: Tensor, pad: int) -> None:
        """The past onto the first frames of a canvas."""
        inner(canvas, pad)[:PAST].copy_(next(self._old)[0].permute(1, 2, 3, 0))

    def leave(self, canvas: Tensor, pad: int) -> None:
        """Keep the last frames of a canvas."""
        tail_TYXC = inner(canvas, pad)[-PAST:].clone()
        self._new.append(tail_TYXC.permute(3, 0, 1, 2)[None])

    def finish(self) -> VAEState:
        assert next(self._old, None) is None, "state belongs to another network"
        return tuple(self._new)


class FastDecoder(nn.Module):
    """In the place of a VAE. Its encoder is the plain one."""

    def __init__(self, vae: WanVAE, own: Convolution | None = None) -> None:
        super().__init__()
        self.vae, decoder = vae, vae.decoder
        self._own = own
        self._canvases: dict[tuple[int, ...], Tensor] = {}
        self._packed: dict[nn.Module, Tensor] = {}
        for module in decoder.modules():
            if isinstance(module, nn.Conv3d):
                self._settle(module)
        self._phases = {layer: four_phases(layer.conv.weight) for layer in decoder.up if isinstance(layer, Upsample)}
        self._taps = tap_rows(decoder.conv_out.weight)

    def _settle(self, conv: nn.Conv3d) -> None:
        """A weight in the order its convolution reads it."""
        packed = self._own.pack(conv.weight) if self._own is not None else None
        if packed is not None:
            self._packed[conv] = packed
        conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last_3d)

    def decode(self, latents_BFCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        """As `WanVAE.decode`."""
        if state:
            assert latents_BFCYX.shape[0] == 1, f"one session at a time, got {latents_BFCYX.shape[0]}"
            return self._decode(latents_BFCYX, state)
        first, state = self.vae.decode(latents_BFCYX[:, :1])
        if latents_BFCYX.shape[1] == 1:
            return first, state
        rest, state = self._decode(latents_BFCYX[:, 1:], state)
        return torch.cat([first, rest], dim=1), state

    def encode(self, pixels_BTCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        return self.vae.encode(pixels_BTCYX, state)

    def _decode(self, latents_BFCYX: Tensor, state: VAEState) -> tuple[Tensor, VAEState]:
        tails, decoder = Tails(state), self.vae.decoder
        z_TYXC = self.vae.unquantised(latents_BFCYX)[0].permute(1, 2, 3, 0).contiguous()
        parted = self._into(Parted(z_TYXC, z_TYXC.new_zeros(z_TYXC.shape[-1])), None, decoder.conv_in, tails)
        for layer in (*decoder.middle, *decoder.up):
            parted = self._layer(layer, parted, tails)
        return self._show(parted, tails), tails.finish()

    def _layer(self, layer: nn.Module, parted: Parted, tails: Tails) -> Parted:
        if isinstance(layer, ResBlock):
            return self._res_block(layer, parted, tails)
        if isinstance(layer, Upsample):
            return self._upsample(layer, parted, tails)
        assert isinstance(layer, FrameAttention), f"no fast path for {type(layer).__name__}"
        return self._attention(layer, parted)

    def _res_block(self, block: ResBlock, parted: Parted, tails: Tails) -> Parted:
        x, middle = self._keep_and_convolve(parted, block.norm1.weight, block.conv1, tails)
        shortcut = block.shortcut
        if isinstance(shortcut, nn.Conv3d):
            x = F.linear(x, shortcut.weight.flatten(1), shortcut.bias)
        y, bias, _ = self._into(middle, block.norm2.weight, block.conv2, tails)
        return Parted(y, bias, x)

    def _upsample(self, layer: Upsample, parted: Parted, tails: Tails) -> Parted:
        if layer.time_conv is not None:
            doubled = self._into(parted, None, layer.time_conv, tails)
            x = split_frames(doubled.y, doubled.bias_C)
        else:
            x = _kept(parted)
        y = F.conv2d(x.permute(0, 3, 1, 2), self._phases[layer], padding=1).permute(0, 2, 3, 1).contiguous()
        assert layer.conv.bias is not None
        return Parted(y.unflatten(-1, (4, -1)), layer.conv.bias)

    def _attention(self, layer: FrameAttention, parted: Parted) -> Parted:
        x_TYXC = _kept(parted)
        value = x_TYXC.float()
        length = value.square().sum(-1, keepdim=True).clamp_min(1e-24).rsqrt() * value.shape[-1] ** 0.5
        normed = (value * length * layer.norm.weight.flatten().float()).to(x_TYXC.dtype)
        qkv = F.linear(normed, layer.qkv.weight.flatten(1), layer.qkv.bias).flatten(1, 2)
        q, k, v = qkv.chunk(3, dim=-1)
        attended = _frame_attention(q, k, v).view_as(x_TYXC)
        assert layer.proj.bias is not None
        return Parted(F.linear(attended, layer.proj.weight.flatten(1)), layer.proj.bias, x_TYXC)

    def _keep_and_convolve(self, parted: Parted, weight: Tensor, conv: CausalConv, tails: Tails) -> tuple[Tensor, Parted]:
        """The residual as it stands, and its normed convolution."""
        canvas, pad = self._canvas(parted, conv)
        tails.enter(canvas, pad)
        x = merge_onto(*parted, weight.flatten(), canvas, pad=pad, keep=True)
        assert x is not None
        return x, self._convolved(canvas, pad, conv, tails)

    def _into(self, parted: Parted, weight: Tensor | None, conv: CausalConv, tails: Tails) -> Parted:
        """The convolution of what was parted, normed if there is a weight."""
        canvas, pad = self._canvas(parted, conv)
        tails.enter(canvas, pad)
        merge_onto(*parted, None if weight is None else weight.flatten(), canvas, pad=pad)
        return self._convolved(canvas, pad, conv, tails)

    def _convolved(self, canvas: Tensor, pad: int, conv: CausalConv, tails: Tails) -> Parted:
        assert conv.bias is not None
        tails.leave(canvas, pad)
        if pad:
            assert self._own is not None, "a canvas has a rim only where our own convolution can"
            return Parted(self._own(canvas, self._packed[conv]), conv.bias)
        _, rows, columns = conv.padding
        x_1CTYX = canvas[None].permute(0, 4, 1, 2, 3)  # in this order the strides say channels-last
        y = F.conv3d(x_1CTYX, conv.weight, padding=(0, rows, columns))
        return Parted(y[0].permute(1, 2, 3, 0).contiguous(), conv.bias)

    def _show(self, parted: Parted, tails: Tails) -> Tensor:
        """Pixels [1, T, 3, Y, X]: every tap of the last convolution as one product, then their sum."""
        decoder = self.vae.decoder
        canvas, pad = self._canvas(parted, None)
        tails.enter(canvas, pad)
        merge_onto(*parted, decoder.norm_out.weight.flatten(), canvas, pad=pad)
        tails.leave(canvas, pad)
        planes = (self._taps @ canvas.flatten(0, 2).t()).unflatten(-1, canvas.shape[:3])
        assert decoder.conv_out.bias is not None
        return sum_taps(planes, decoder.conv_out.bias, len(canvas) - PAST, pad=pad).transpose(0, 1)[None]

    def _canvas(self, parted: Parted, conv: CausalConv | None) -> tuple[Tensor, int]:
        """Room for a convolution's input, and the width of its rim."""
        y = parted.y
        frames, rows, columns = y.shape[:3] if y.dim() == 4 else (len(y), 2 * y.shape[1] - 2, 2 * y.shape[2] - 2)
        pad = int(conv in self._packed)
        size = (PAST + frames, rows + 2 * pad, columns + 2 * pad, y.shape[-1])
        if size not in self._canvases:
            self._canvases[size] = y.new_zeros(size)
        return self._canvases[size], pad


def four_phases(weight_OIYX: Tensor) -> Tensor:
    """Nearest doubling and a 3x3 convolution, as one 2x2 convolution of the small picture: [4 * O, I, 2, 2].

    Of two rows that a pixel's three rows fall on, the first or the second is hit twice, by the pixel's parity.
    """
    w = weight_OIYX.float()
    rows = [torch.stack([w[:, :, 0], w[:, :, 1] + w[:, :, 2]], 2), torch.stack([w[:, :, 0] + w[:, :, 1], w[:, :, 2]], 2)]
    phases = [
        torch.stack(pair, -1) for r in rows for pair in ((r[..., 0], r[..., 1] + r[..., 2]), (r[..., 0] + r[..., 1], r[..., 2]))
    ]
    return torch.cat(phases).to(weight_OIYX.dtype).contiguous(memory_format=torch.channels_last)


def tap_rows(weight_OITYX: Tensor) -> Tensor:
    """A row for every tap and output, and zeros up to a multiple of 8, which products like: [27 * O rounded up, I]."""
    outer, inputs = weight_OITYX.shape[:2]
    rows = weight_OITYX.permute(2, 3, 4, 0, 1).reshape(TAPS * outer, inputs)
    return F.pad(rows, (0, 0, 0, -len(rows) % 8)).contiguous()


def _kept(parted: Parted) -> Tensor:
    x = merge_onto(*parted, None, None, keep=True)
    assert x is not None
    return x


def _frame_attention(q_TPC: Tensor, k_TPC: Tensor, v_TPC: Tensor) -> Tensor:
    """Each frame's pixels among themselves. One head too wide for fused kernels: scores in float32, written out."""
    scaled = q_TPC * q_TPC.shape[-1] ** -0.5
    if q_TPC.is_cuda and q_TPC.dtype != torch.float32:
        scores = torch.bmm(scaled, k_TPC.transpose(1, 2), out_dtype=torch.float32)
    else:
        scores = scaled.float() @ k_TPC.float().transpose(1, 2)
    return scores.softmax(-1).to(v_TPC.dtype) @ v_TPC
