"""The convolutions of a VAE, one by one, with the size each works at: what flops, tails and peaks are counted
from.

Steady state: a call of `frames` latent frames in the middle of an epoch. Shapes are of the output; `tail` is
how many values a causal layer keeps of each place for the next call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from millstream.core.config import SPATIAL_STRIDE, TEMPORAL_STRIDE, BrookVAEConfig, VAEConfig

TINY_WIDTHS = (256, 128, 64)
"""Channels of the tiny decoder at an eighth, a quarter and half of the size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conv:
    inner: int
    outer: int
    taps: int
    frames: int
    rows: int
    columns: int
    tail: int = 0
    beside: int = 0
    """Values that the shortcut around its level holds meanwhile, where it has one."""
    deep: bool = False
    """True for a network over time as well as rows and columns."""

    @property
    def flops(self) -> int:
        return 2 * self.inner * self.outer * self.taps * self.frames * self.rows * self.columns

    @property
    def tail_values(self) -> int:
        return self.tail * self.rows * self.columns


@lru_cache(maxsize=256)
def decoder_convs(vae: VAEConfig | BrookVAEConfig, frames: int, height: int, width: int) -> tuple[Conv, ...]:
    rows = height // vae.spatial_stride
    columns = width // vae.spatial_stride
    if isinstance(vae, BrookVAEConfig):
        return tuple(_brook_decoder(vae, frames, rows, columns))
    return tuple(replace(conv, deep=True) for conv in _wan_decoder(vae, frames, rows, columns))


@lru_cache(maxsize=256)
def encoder_convs(vae: VAEConfig | BrookVAEConfig, frames: int, height: int, width: int) -> tuple[Conv, ...]:
    if isinstance(vae, BrookVAEConfig):
        return tuple(_brook_encoder(vae, frames, height, width))
    rows = height // vae.pixel_patch
    columns = width // vae.pixel_patch
    return tuple(replace(conv, deep=True) for conv in _wan_encoder(vae, frames, rows, columns))


@lru_cache(maxsize=256)
def tiny_decoder_convs(channels: int, frames: int, height: int, width: int) -> tuple[Conv, ...]:
    """TAEHV's: three levels of three blocks, each doubling the size and the last two the frames; no
    convolution over time."""
    rows = height // SPATIAL_STRIDE
    columns = width // SPATIAL_STRIDE
    convs = [_conv(channels, TINY_WIDTHS[0], 9, frames, rows, columns)]
    for width_in, width_out, growth in zip(
        TINY_WIDTHS, (*TINY_WIDTHS[1:], TINY_WIDTHS[-1]), (1, 2, 2), strict=True
    ):
        for _ in range(3):
            convs.append(_conv(2 * width_in, width_in, 9, frames, rows, columns))
            convs += [_conv(width_in, width_in, 9, frames, rows, columns)] * 2
        rows = 2 * rows
        columns = 2 * columns
        convs.append(_conv(width_in, growth * width_in, 1, frames, rows, columns))
        frames *= growth
        convs.append(_conv(width_in, width_out, 9, frames, rows, columns))
    return (*convs, _conv(TINY_WIDTHS[-1], 3, 9, frames, rows, columns))


def _wan_decoder(c: VAEConfig, t: int, y: int, x: int) -> Iterator[Conv]:
    widths = c.widths_up
    doubles = tuple(reversed(c.downsample_time))
    yield _conv(c.channels, c.channels, 1, t, y, x)
    yield _conv(c.channels, widths[0], 27, t, y, x, tail=2)
    yield from _middle(widths[0], t, y, x)
    for level, (inner, outer) in enumerate(pairwise(widths)):
        inner = inner if level == 0 or c.residual else inner // 2
        held = inner * t * y * x if c.residual and level < len(doubles) else 0
        for block in range(c.res_blocks + 1):
            yield from _res_block(inner if block == 0 else outer, outer, t, y, x, beside=held if block else 0)
        if level < len(doubles):
            if doubles[level]:
                yield _conv(outer, 2 * outer, 3, t, y, x, tail=2)
                t *= 2
            y = 2 * y
            x = 2 * x
            yield replace(_conv(outer, outer if c.residual else outer // 2, 9, t, y, x), beside=held)
    yield _conv(widths[-1], c.colours, 27, t, y, x, tail=2)


def _wan_encoder(c: VAEConfig, frames: int, y: int, x: int) -> Iterator[Conv]:
    widths = c.widths_down
    t = TEMPORAL_STRIDE * frames
    yield _conv(c.colours, widths[0], 27, t, y, x, tail=2)
    for level, (inner, outer) in enumerate(pairwise(widths)):
        held = inner * t * y * x if c.residual else 0
        for block in range(c.res_blocks):
            yield from _res_block(inner if block == 0 else outer, outer, t, y, x, beside=held if block else 0)
        if level < len(c.downsample_time):
            y = y // 2
            x = x // 2
            yield replace(_conv(outer, outer, 9, t, y, x), beside=held)
            if c.downsample_time[level]:
                t //= 2
                yield _conv(outer, outer, 3, t, y, x, tail=1)
    yield from _middle(widths[-1], t, y, x)
    yield _conv(widths[-1], 2 * c.channels, 27, t, y, x, tail=2)
    yield _conv(2 * c.channels, 2 * c.channels, 1, t, y, x)


def _middle(top: int, t: int, y: int, x: int) -> Iterator[Conv]:
    yield from _res_block(top, top, t, y, x)
    yield _conv(top, 3 * top, 1, t, y, x)
    yield _conv(top, top, 1, t, y, x)
    yield from _res_block(top, top, t, y, x)


def _res_block(inner: int, outer: int, t: int, y: int, x: int, beside: int = 0) -> Iterator[Conv]:
    yield replace(_conv(inner, outer, 27, t, y, x, tail=2), beside=beside)
    yield replace(_conv(outer, outer, 27, t, y, x, tail=2), beside=beside)
    if inner != outer:
        yield _conv(inner, outer, 1, t, y, x)


def _brook_decoder(c: BrookVAEConfig, t: int, y: int, x: int) -> Iterator[Conv]:
    wide, middle, thin = c.widths
    yield Conv(inner=3 * c.channels, outer=wide, taps=9, frames=t, rows=y, columns=x, tail=2 * c.channels)
    yield from _plain_blocks(wide, c.blocks[0], t, y, x)
    yield _conv(wide, TEMPORAL_STRIDE * middle, 1, t, y, x)
    t *= TEMPORAL_STRIDE
    yield _conv(middle, 4 * middle, 9, t, y, x)
    yield from _plain_blocks(middle, c.blocks[1], t, 2 * y, 2 * x)
    yield _conv(middle, 4 * thin, 9, t, 2 * y, 2 * x)
    yield from _plain_blocks(thin, c.blocks[2], t, 4 * y, 4 * x)
    yield _conv(thin, 12, 9, t, 4 * y, 4 * x)


def _brook_encoder(c: BrookVAEConfig, frames: int, y: int, x: int) -> Iterator[Conv]:
    wide, middle, thin = c.widths
    t = TEMPORAL_STRIDE * frames
    yield _conv(12, thin, 9, t, y // 2, x // 2)
    yield from _plain_blocks(thin, 1, t, y // 2, x // 2)
    yield _conv(4 * thin, middle, 9, t, y // 4, x // 4)
    yield from _plain_blocks(middle, 1, t, y // 4, x // 4)
    yield _conv(4 * middle, wide, 9, t, y // 8, x // 8)
    yield _conv(TEMPORAL_STRIDE * wide, wide, 1, frames, y // 8, x // 8)
    yield Conv(inner=3 * wide, outer=wide, taps=9, frames=frames, rows=y // 8, columns=x // 8, tail=2 * wide)
    yield from _plain_blocks(wide, 2, frames, y // 8, x // 8)
    yield _conv(wide, 2 * c.channels, 9, frames, y // 8, x // 8)


def _plain_blocks(width: int, count: int, t: int, y: int, x: int) -> Iterator[Conv]:
    for _ in range(2 * count):
        yield _conv(width, width, 9, t, y, x)


def _conv(inner: int, outer: int, taps: int, frames: int, rows: int, columns: int, tail: int = 0) -> Conv:
    return Conv(
        inner=inner, outer=outer, taps=taps, frames=frames, rows=rows, columns=columns, tail=tail * inner
    )
