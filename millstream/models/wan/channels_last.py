"""Shared layers of Wan's encoder and decoder on the fast path: channels-last, one pass over memory between
convolutions.

Takes layers of `models/wan/vae.py` as they are and computes what they do. Between layers travels an answer
without its bias and residual, which the next pass adds; a convolution's input is a canvas, whose first frames
are what the layer remembers and whose rim is the zeros that it pads with, or what lies around a picture that
is part of a larger one. A pass that starts an epoch is of its first frame alone, which stands for a single
picture.
Shapes: T frames, Y and X rows and columns, C channels; batch is 1. Frames are [T, Y, X, C].
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.models.carry import VAEState
from millstream.models.wan.vae import FrameAttention, WanResBlock
from millstream.ops.conv3 import PAST
from millstream.ops.pictures import copy_frames, inner, merge_onto


class Convolution(Protocol):
    """Another 3x3x3 convolution than the library's, for the weights it can."""

    def pack(self, weight_OITYX: Tensor) -> Tensor | None:
        """Return the weight in the order that this convolution reads, or None if it cannot compute it."""

    def __call__(self, canvas: Tensor, packed_weight: Tensor) -> Tensor:
        """[T, Y, X, C] of a canvas with a rim of one pixel."""


class TileBorders:
    """Surroundings of a picture: none here, so that rims stay zero. In `parallel/` a picture may be part of a
    larger one."""

    def fill(self, canvas_TYXC: Tensor, before: int, after: int) -> None:
        """Fill the rim of a canvas, so many pixels before and after the picture's own in both directions."""

    def surrounded(self, x_TYXC: Tensor) -> tuple[Tensor, int]:
        """Return the picture with one more pixel on every side, or as it is, and how many pixels a
        convolution is to pad with zeros."""
        return x_TYXC, 1

    def everywhere(self, x_TPC: Tensor) -> Tensor:
        """Return the tensor for all pixels of the whole picture."""
        return x_TPC


NOTHING_AROUND = TileBorders()


class SplitCanvas(NamedTuple):
    """A layer's answer before bias and residual are added: the next pass over it does that."""

    y: Tensor
    bias_C: Tensor
    residual_TYXC: Tensor | None = None

    @property
    def size(self) -> tuple[int, int, int]:
        """Frames, rows and columns. In four phases, pixels are two by two in cells that reach over the
        edges."""
        frames, rows, columns = self.y.shape[:3]
        return (frames, rows, columns) if self.y.dim() == 4 else (frames, 2 * rows - 2, 2 * columns - 2)

    def whole(self) -> Tensor:
        x_TYXC = merge_onto(*self, None, None, keep=True)
        assert x_TYXC is not None
        return x_TYXC


class ConvTail:
    """Hands each causal layer of one pass its past and collects the new ones, as `Carry` does for the plain
    layers."""

    def __init__(self, state: VAEState) -> None:
        self.starts_epoch = not state
        self._old = iter(state)
        self._new: list[Tensor] = []

    def enter(self, canvas: Tensor, past: int, pad: int = 0) -> None:
        """Copy the past onto the first frames of a canvas, zeros where there was none."""
        first_TYXC = inner(canvas, pad)[:past]
        if self.starts_epoch:
            first_TYXC.zero_()
        else:
            copy_frames(first_TYXC, next(self._old)[0].permute(1, 2, 3, 0))

    def keep_last(self, canvas: Tensor, past: int) -> None:
        """Keep the last frames of a canvas without a rim."""
        last_TYXC = canvas[-past:]
        tail_TYXC = torch.empty_like(last_TYXC, memory_format=torch.contiguous_format)
        copy_frames(tail_TYXC, last_TYXC)
        self.keep(tail_TYXC)

    def room(self, canvas: Tensor, past: int, pad: int) -> Tensor:
        """Return room for the last frames of a canvas that is yet to be painted. Of a past that is longer
        than the pass, some are there already."""
        entered_TYXC = inner(canvas, pad)[:past]
        frames = len(canvas) - past
        tail_TYXC = torch.empty_like(entered_TYXC, memory_format=torch.contiguous_format)
        if frames < past:
            copy_frames(tail_TYXC[: past - frames], entered_TYXC[frames:])
        self.keep(tail_TYXC)
        return tail_TYXC

    def keep(self, tail_TYXC: Tensor) -> None:
        """Keep the frames that a layer will see as its past."""
        self._new.append(tail_TYXC.permute(3, 0, 1, 2)[None])

    def finish(self) -> VAEState:
        assert next(self._old, None) is None, "state belongs to another network"
        return tuple(self._new)


class Canvases:
    """Inputs of convolutions, kept from pass to pass because their rims are zero already; nothing else in
    them outlives one.

    Those of this pass and of the one before, if that was of another kind: new ones cost a little time, kept
    ones much memory.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, ...], dict[tuple[int, ...], Tensor]] = {}
        self._kind: tuple[int, ...] = ()

    def begin(self, kind: tuple[int, ...]) -> None:
        """Begin a pass. Its kind is the shape of what enters the network, and where it is done."""
        self._kinds = {kept: self._kinds.get(kept, {}) for kept in (self._kind, kind)}
        self._kind = kind

    def get(self, size: tuple[int, ...], rim: tuple[int, ...], like: Tensor) -> Tensor:
        """Return the canvas of this size and place of the rim; each has its own, since a second use must find
        its zeros where it needs them."""
        canvases = self._kinds[self._kind]
        key = (*size, *rim)
        if key not in canvases:
            canvases[key] = like.new_zeros(size)
        return canvases[key]


class FastLayers:
    """The layers of one network. Each network has its own canvases, so that one may encode while another
    decodes."""

    def __init__(self, network: nn.Module, own: Convolution | None, borders: TileBorders) -> None:
        self._own = own
        self.borders = borders
        self._canvases = Canvases()
        self._packed: dict[nn.Module, Tensor] = {}
        for module in network.modules():
            if isinstance(module, nn.Conv3d):
                self._pack_weight(module)

    def _pack_weight(self, conv: nn.Conv3d) -> None:
        """Put a weight in the order that its convolution reads."""
        packed = self._own.pack(conv.weight) if self._own is not None else None
        if packed is not None:
            self._packed[conv] = packed
        conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last_3d)

    def begin(self, x: Tensor) -> None:
        """Begin a pass over `x`. Each stream of a GPU has its own canvases: another's may still be read."""
        stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
        self._canvases.begin((*x.shape, stream))

    def res_block(self, block: WanResBlock, parted: SplitCanvas, tails: ConvTail) -> SplitCanvas:
        x, middle = self._keep_and_convolve(parted, block.norm1.weight, block.conv1, tails)
        shortcut = block.shortcut
        if isinstance(shortcut, nn.Conv3d):
            x = F.linear(x, shortcut.weight.flatten(1), shortcut.bias)
        y, bias, _ = self.convolve(middle, block.norm2.weight, block.conv2, tails)
        return SplitCanvas(y, bias, x)

    def attention(self, layer: FrameAttention, parted: SplitCanvas) -> SplitCanvas:
        x_TYXC = parted.whole()
        value = x_TYXC.float()
        length = value.square().sum(-1, keepdim=True).clamp_min(1e-24).rsqrt() * value.shape[-1] ** 0.5
        normed = (value * length * layer.norm.weight.flatten().float()).to(x_TYXC.dtype)
        qkv = F.linear(normed, layer.qkv.weight.flatten(1), layer.qkv.bias).flatten(1, 2)
        q, kv = qkv.tensor_split((x_TYXC.shape[-1],), dim=-1)
        k, v = self.borders.everywhere(kv).chunk(2, dim=-1)
        attended = _frame_attention(q, k, v).view_as(x_TYXC)
        assert layer.proj.bias is not None
        return SplitCanvas(F.linear(attended, layer.proj.weight.flatten(1)), layer.proj.bias, x_TYXC)

    def convolve(
        self, parted: SplitCanvas, weight: Tensor | None, conv: nn.Conv3d, tails: ConvTail
    ) -> SplitCanvas:
        """The causal convolution of what was parted, normed if there is a weight."""
        canvas, _ = self.paint(parted, weight, tails, past=past_of(conv), pad=rim_of(conv))
        return self._convolved(canvas, conv)

    def _keep_and_convolve(
        self, parted: SplitCanvas, weight: Tensor, conv: nn.Conv3d, tails: ConvTail
    ) -> tuple[Tensor, SplitCanvas]:
        """The residual as it stands, and its normed convolution."""
        canvas, x = self.paint(parted, weight, tails, past=past_of(conv), pad=rim_of(conv), keep=True)
        assert x is not None
        return x, self._convolved(canvas, conv)

    def paint(
        self,
        parted: SplitCanvas,
        weight: Tensor | None,
        tails: ConvTail,
        *,
        past: int = PAST,
        pad: int,
        keep: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """A causal layer's input behind its past, normed if there is a weight; and the same without the norm,
        if to be kept."""
        frames, rows, columns = parted.size
        size = (past + frames, rows + 2 * pad, columns + 2 * pad, parted.y.shape[-1])
        canvas = self._canvases.get(size, (past, pad), parted.y)
        tails.enter(canvas, past, pad)
        tail = tails.room(canvas, past, pad)
        flat = None if weight is None else weight.flatten()
        kept = merge_onto(*parted, flat, canvas, past=past, pad=pad, keep=keep, tail=tail)
        self.borders.fill(canvas, pad, pad)
        return canvas, kept

    def with_edge(self, parted: SplitCanvas) -> Tensor:
        """Frames with a row more below them and a column to their right."""
        frames, rows, columns = parted.size
        canvas = self._canvases.get((frames, rows + 1, columns + 1, parted.y.shape[-1]), (0, 0), parted.y)
        merge_onto(*parted, None, canvas, past=0)
        self.borders.fill(canvas, 0, 1)
        return canvas

    def colours(self, pixels_TCYX: Tensor, channels: int, tails: ConvTail, *, pad: int) -> Tensor:
        """A causal layer's input behind its past, from planes: their colours, then zeros up to as many
        channels."""
        frames, colours, rows, columns = pixels_TCYX.shape
        size = (PAST + frames, rows + 2 * pad, columns + 2 * pad, channels)
        canvas = self._canvases.get(size, (PAST, pad), pixels_TCYX)
        coloured = inner(canvas, pad)[..., :colours]
        tails.enter(coloured, PAST)
        coloured[PAST:] = pixels_TCYX.permute(0, 2, 3, 1)
        tails.keep_last(coloured, PAST)
        self.borders.fill(canvas, pad, pad)
        return canvas

    def _convolved(self, canvas: Tensor, conv: nn.Conv3d) -> SplitCanvas:
        if conv not in self._packed:
            return library_convolution(canvas, conv.weight, conv)
        assert self._own is not None
        assert conv.bias is not None
        return SplitCanvas(self._own(canvas, self._packed[conv]), conv.bias)


def past_of(conv: nn.Conv3d) -> int:
    """Frames before its first that a causal convolution sees."""
    return conv.kernel_size[0] - conv.stride[0]


def rim_of(conv: nn.Conv3d) -> int:
    """Pixels around a picture that a convolution takes for zeros. The library's, too, is quicker with them in
    memory."""
    return int(conv.padding[-1])


def library_convolution(canvas_TYXC: Tensor, weight_OITYX: Tensor, conv: nn.Conv3d) -> SplitCanvas:
    """Convolve a canvas with a rim as `conv` does, with a weight that replaces its own."""
    assert conv.bias is not None
    x_1CTYX = canvas_TYXC[None].permute(0, 4, 1, 2, 3)  # in this order the strides say channels-last
    y = F.conv3d(x_1CTYX, weight_OITYX, stride=conv.stride)
    return SplitCanvas(y[0].permute(1, 2, 3, 0).contiguous(), conv.bias)


def _frame_attention(q_TPC: Tensor, k_TPC: Tensor, v_TPC: Tensor) -> Tensor:
    """Each frame's pixels among themselves. One head too wide for fused kernels: scores in float32, written
    out."""
    scaled = q_TPC * q_TPC.shape[-1] ** -0.5
    if q_TPC.is_cuda and q_TPC.dtype != torch.float32:
        scores = torch.bmm(scaled, k_TPC.transpose(1, 2), out_dtype=torch.float32)
    else:
        scores = scaled.float() @ k_TPC.float().transpose(1, 2)
    return scores.softmax(-1).to(v_TPC.dtype) @ v_TPC
