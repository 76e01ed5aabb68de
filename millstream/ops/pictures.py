"""Operations between the convolutions of a video VAE, pixel by pixel, each a single pass over memory.

Frames are channels-last: [T, Y, X, C]. Triton on a GPU, plain torch elsewhere; arithmetic is float32, stored
once. A convolution's input is a canvas, larger than the frames: its first frames are the past, its rim stays
zero. Where nothing else is said it is [PAST + T, Y + 2 pad, X + 2 pad, C].
Shapes: T frames, Y and X rows and columns, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.ops.backend import runs_kernels
from millstream.ops.conv3 import PAST, TAPS
from millstream.ops.pixels import to_bytes

_WIDE = torch.complex128
"""The widest element there is: 16 bytes, as many as a GPU's thread moves at once."""


def merge_onto(
    y: Tensor,
    bias_C: Tensor,
    residual_TYXC: Tensor | None,
    weight_C: Tensor | None,
    canvas: Tensor | None,
    *,
    past: int = PAST,
    pad: int = 0,
    keep: bool = False,
    tail: Tensor | None = None,
) -> Tensor | None:
    """`y + bias + residual`: kept and returned, put on a canvas, or both; there normed and with SiLU if given
    a weight.

    `y` is [T, Y, X, C], or what a convolution in four phases leaves, [T, Y/2 + 1, X/2 + 1, 4, C]. On the
    canvas it comes after `past` frames, `pad` rows and `pad` columns; what is beyond it stays as it is.
    `tail` is room for the canvas's last `past` frames without their rim: those of `y` among them are put
    there too.
    """
    assert keep or canvas is not None, "nothing to do"
    if runs_kernels(y):
        from millstream.ops.kernels.pictures import launch_merge_onto

        return launch_merge_onto(
            y, bias_C, residual_TYXC, weight_C, canvas, past=past, pad=pad, keep=keep, tail=tail
        )
    value = (woven(y) if y.dim() == 5 else y).float() + bias_C.float()
    if residual_TYXC is not None:
        value = value + residual_TYXC.float()
    if canvas is not None:
        shown = value
        if weight_C is not None:
            length = value.square().sum(-1, keepdim=True).clamp_min(1e-24).rsqrt() * value.shape[-1] ** 0.5
            shown = F.silu(value * length * weight_C.float())
        _, rows, columns, _ = shown.shape
        canvas[past:, pad : pad + rows, pad : pad + columns] = shown.to(canvas.dtype)
        if tail is not None:
            tail[-len(shown) :] = shown[-past:].to(tail.dtype)
    return value.to(y.dtype) if keep else None


def inner(canvas: Tensor, pad: int) -> Tensor:
    """A canvas without its rim."""
    return canvas[:, pad : canvas.shape[1] - pad, pad : canvas.shape[2] - pad]


def copy_frames(target_TYXC: Tensor, source_TYXC: Tensor) -> None:
    """Copy frames bit by bit, in wide pieces where both sides consist of them: rows inside a rim are not one
    run of memory."""
    assert target_TYXC.shape == source_TYXC.shape, (
        f"frames {tuple(source_TYXC.shape)} for a place of {tuple(target_TYXC.shape)}"
    )
    if _is_wide(target_TYXC) and _is_wide(source_TYXC):
        target_TYXC = target_TYXC.view(_WIDE)
        source_TYXC = source_TYXC.view(_WIDE)
    target_TYXC.copy_(source_TYXC)


def _is_wide(x: Tensor) -> bool:
    """Return whether every run of channels consists of whole wide pieces, at aligned addresses."""
    places = (*x.stride()[:-1], x.shape[-1], x.storage_offset())
    return x.stride(-1) == 1 and all(place * x.element_size() % _WIDE.itemsize == 0 for place in places)


def woven(y_T1YXC: Tensor) -> Tensor:
    """[T, Y, X, C] of the four phases [T, Y/2 + 1, X/2 + 1, 4, C]: pixel (y, x) is of phase (y % 2, x %
    2)."""
    assert y_T1YXC.shape[3] == 4, f"a pixel is of one of four phases, got {y_T1YXC.shape[3]}"
    t, rows, columns, _, c = y_T1YXC.shape
    phases = y_T1YXC.unflatten(3, (2, 2))
    picked = [
        torch.stack([phases[:, a : a + rows - 1, b : b + columns - 1, a, b] for b in (0, 1)], dim=3)
        for a in (0, 1)
    ]
    return torch.stack(picked, dim=2).reshape(t, 2 * rows - 2, 2 * columns - 2, c)


def split_frames(y_TYXC: Tensor, bias_C: Tensor) -> Tensor:
    """Two frames of each: the first half of the channels, then the second. [T, Y, X, 2C] to [2T, Y, X, C]."""
    assert y_TYXC.shape[-1] % 2 == 0, f"{y_TYXC.shape[-1]} channels do not make two frames"
    if runs_kernels(y_TYXC):
        from millstream.ops.kernels.pictures import launch_split_frames

        return launch_split_frames(y_TYXC, bias_C)
    both = (y_TYXC.float() + bias_C.float()).to(y_TYXC.dtype).unflatten(-1, (2, -1))
    return both.permute(0, 3, 1, 2, 4).flatten(0, 1).contiguous()


def sum_taps(planes: Tensor, bias_C: Tensor, frames: int) -> Tensor:
    """A 3x3x3 convolution's answer [C, T, Y, X], clamped to [-1, 1], from each tap's own matmul.

    `planes` are [27 * C or more, PAST + T, Y + 2, X + 2], by tap and then by channel.
    """
    assert len(planes) >= TAPS * len(bias_C), (
        f"{len(planes)} planes for {TAPS} taps of {len(bias_C)} channels"
    )
    if runs_kernels(planes):
        from millstream.ops.kernels.pictures import launch_sum_taps

        return launch_sum_taps(planes, bias_C, frames)
    channels = len(bias_C)
    taps = planes[: TAPS * channels].float().unflatten(0, (3, 3, 3, channels))
    rows = taps.shape[-2] - 2
    columns = taps.shape[-1] - 2
    total = bias_C.float()[:, None, None, None].expand(channels, frames, rows, columns).clone()
    for t in range(3):
        for y in range(3):
            for x in range(3):
                total += taps[t, y, x, :, t : t + frames, y : y + rows, x : x + columns]
    return total.clamp(-1, 1).to(planes.dtype)


def to_pictures(pixels_TCYX: Tensor) -> Tensor:
    """Bytes as people's files hold them, [T, Y, X, C] uint8: the numbers of `to_bytes`, a pixel's colours
    side by side."""
    if runs_kernels(pixels_TCYX):
        from millstream.ops.kernels.pictures import launch_to_pictures

        return launch_to_pictures(pixels_TCYX)
    return torch.stack(to_bytes(pixels_TCYX).unbind(1), dim=-1)  # quicker on a CPU than to permute
