"""Wan's causal video VAE, streaming: what it remembers between calls is an object passed in and out.

The modules hold weights only. Any split of a sequence gives the same frames: each causal layer is handed the
last frames it saw, zeros at the start of an epoch. The first latent frame stands for one pixel frame, each
later one for four. Wan 2.1's and, with patches of pixels and shortcuts around each level, Wan 2.2's.
Shapes: B batch, C channels, T frames (latent or pixel, by depth), Y and X rows and columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.config import TEMPORAL_STRIDE, VAEConfig
from millstream.models.carry import Carry, VAEState
from millstream.ops.norms import channel_norm


class CausalConv(nn.Conv3d):
    """A 3D convolution that sees the past, never the future. Not padded in time: the carry supplies the
    past."""

    def __init__(self, inner: int, outer: int, kernel: int | tuple[int, int, int]) -> None:
        t, y, x = (kernel,) * 3 if isinstance(kernel, int) else kernel
        super().__init__(inner, outer, (t, y, x), padding=(0, y // 2, x // 2))

    def stream(self, x_BCTYX: Tensor, carry: Carry) -> Tensor:
        return self(carry.extend(x_BCTYX, self.kernel_size[0] - 1))


class ChannelNorm(nn.Module):
    def __init__(self, channels: int, dims: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, *(1,) * dims))

    def forward(self, x: Tensor) -> Tensor:
        return channel_norm(x, self.weight)


class WanResBlock(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norm1 = ChannelNorm(inner)
        self.conv1 = CausalConv(inner, outer, 3)
        self.norm2 = ChannelNorm(outer)
        self.conv2 = CausalConv(outer, outer, 3)
        self.shortcut = nn.Conv3d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        y = self.conv1.stream(F.silu(self.norm1(x)), carry)
        y = self.conv2.stream(F.silu(self.norm2(y)), carry)
        return self.shortcut(x) + y


class FrameAttention(nn.Module):
    """Each frame's pixels attend to each other; time is not crossed."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(channels, dims=2)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        frames = x.transpose(1, 2).flatten(0, 1)
        q, k, v = self.qkv(self.norm(frames)).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, dim=-1)
        attended = F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2).view_as(frames)
        return x + self.proj(attended).unflatten(0, (x.shape[0], -1)).transpose(1, 2)


class Upsample(nn.Module):
    """Twice the size; twice the frames too if `time`, save for the epoch's first."""

    def __init__(self, channels: int, outer: int, time: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, outer, 3, padding=1)
        self.time_conv = CausalConv(channels, 2 * channels, (3, 1, 1)) if time else None

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        if self.time_conv is not None:
            x = self._double_frames(x, self.time_conv, carry)
        frames = F.interpolate(x.transpose(1, 2).flatten(0, 1), scale_factor=2.0, mode="nearest-exact")
        return self.conv(frames).unflatten(0, (x.shape[0], -1)).transpose(1, 2)

    @staticmethod
    def _double_frames(x: Tensor, time_conv: CausalConv, carry: Carry) -> Tensor:
        """The epoch's first frame stays single and is not part of what the later ones see."""
        first, rest = (x[:, :, :1], x[:, :, 1:]) if carry.starts_epoch else (x[:, :, :0], x)
        if rest.shape[2] == 0:
            carry.extend(rest, 2)
            return first
        even, odd = time_conv.stream(rest, carry).chunk(2, dim=1)
        return torch.cat([first, torch.stack([even, odd], dim=3).flatten(2, 3)], dim=2)


class Downsample(nn.Module):
    """Half the size; half the frames too if `time`, save for the epoch's first."""

    def __init__(self, channels: int, time: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)
        self.time_conv = nn.Conv3d(channels, channels, (3, 1, 1), stride=(2, 1, 1)) if time else None

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        frames = F.pad(x.transpose(1, 2).flatten(0, 1), (0, 1, 0, 1))
        x = self.conv(frames).unflatten(0, (x.shape[0], -1)).transpose(1, 2)
        return x if self.time_conv is None else self._halve_frames(x, self.time_conv, carry)

    @staticmethod
    def _halve_frames(x: Tensor, time_conv: nn.Conv3d, carry: Carry) -> Tensor:
        longer = carry.extend(x, 1)
        if not carry.starts_epoch:
            return time_conv(longer)
        first = x[:, :, :1]
        return first if x.shape[2] == 1 else torch.cat([first, time_conv(x)], dim=2)


class DownLevel(nn.Module):
    """Layers of one level of an encoder, with the mean of the pixels that each of its results stands for added
    to it."""

    def __init__(self, layers: Iterable[nn.Module], inner: int, outer: int, *, time: int, space: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.factors = time, space
        self.outer = outer
        assert inner * time * space**2 % outer == 0, f"{inner} channels do not make {outer}"

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        y = x
        for layer in self.layers:
            y = layer(y, carry)
        return y + self._means(x, carry)

    def _means(self, x_BCTYX: Tensor, carry: Carry) -> Tensor:
        """Average frames; the epoch's first one is merged with one of zeros before it."""
        time, space = self.factors
        if carry.starts_epoch:
            x_BCTYX = F.pad(x_BCTYX, (0, 0, 0, 0, time - 1, 0))
        x = x_BCTYX.unflatten(4, (-1, space)).unflatten(3, (-1, space)).unflatten(2, (-1, time))
        x = x.permute(0, 1, 3, 5, 7, 2, 4, 6).flatten(1, 4)
        return x.unflatten(1, (self.outer, -1)).mean(dim=2)


class UpLevel(nn.Module):
    """Layers of one level of a decoder, with what came in, repeated to the size of the result, added to it."""

    def __init__(self, layers: Iterable[nn.Module], inner: int, outer: int, *, time: int, space: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.factors = time, space
        self.repeats = outer * time * space**2 // inner
        assert self.repeats * inner == outer * time * space**2, f"{inner} channels do not make {outer}"

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        y = x
        for layer in self.layers:
            y = layer(y, carry)
        return y + self._repeated(x, carry)

    def _repeated(self, x_BCTYX: Tensor, carry: Carry) -> Tensor:
        """Repeat frames; the epoch's first one stays single."""
        time, space = self.factors
        x = x_BCTYX.repeat_interleave(self.repeats, dim=1).unflatten(1, (-1, time, space, space))
        x = x.permute(0, 1, 5, 2, 6, 3, 7, 4).flatten(6, 7).flatten(4, 5).flatten(2, 3)
        return x[:, :, time - 1 :] if carry.starts_epoch else x


class LastLevel(nn.Module):
    """Layers of the decoder's last level, which grows nothing and has no shortcut: the decoder goes through
    them itself, so that nothing holds what came in."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)


class WanEncoder(nn.Module):
    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.pixel_patch = config.pixel_patch
        widths = config.widths_down
        self.conv_in = CausalConv(config.colours, widths[0], 3)
        self.down = nn.ModuleList()
        for level, (inner, outer) in enumerate(itertools.pairwise(widths)):
            layers: list[nn.Module] = [
                WanResBlock(inner if i == 0 else outer, outer) for i in range(config.res_blocks)
            ]
            halves = level < len(config.downsample_time)
            in_time = halves and config.downsample_time[level]
            if halves:
                layers.append(Downsample(outer, in_time))
            if config.residual:
                self.down.append(DownLevel(layers, inner, outer, time=1 + in_time, space=1 + halves))
            else:
                self.down.extend(layers)
        top = widths[-1]
        self.middle = nn.ModuleList([WanResBlock(top, top), FrameAttention(top), WanResBlock(top, top)])
        self.norm_out = ChannelNorm(top)
        self.conv_out = CausalConv(top, 2 * config.channels, 3)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        x = self.conv_in.stream(into_patches(x, self.pixel_patch), carry)
        for layer in (*self.down, *self.middle):
            x = layer(x, carry)
        return self.conv_out.stream(F.silu(self.norm_out(x)), carry)


class WanDecoder(nn.Module):
    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.pixel_patch = config.pixel_patch
        widths = config.widths_up
        doubles_time = tuple(reversed(config.downsample_time))
        top = widths[0]
        self.conv_in = CausalConv(config.channels, top, 3)
        self.middle = nn.ModuleList([WanResBlock(top, top), FrameAttention(top), WanResBlock(top, top)])
        self.up = nn.ModuleList()
        for level, (inner, outer) in enumerate(itertools.pairwise(widths)):
            if level and not config.residual:
                inner = inner // 2  # the upsampling before it has halved the channels
            layers: list[nn.Module] = [
                WanResBlock(inner if i == 0 else outer, outer) for i in range(config.res_blocks + 1)
            ]
            doubles = level < len(doubles_time)
            in_time = doubles and doubles_time[level]
            if doubles:
                layers.append(Upsample(outer, outer if config.residual else outer // 2, in_time))
            if config.residual and doubles:
                self.up.append(UpLevel(layers, inner, outer, time=1 + in_time, space=2))
            elif config.residual:
                self.up.append(LastLevel(layers))
            else:
                self.up.extend(layers)
        self.norm_out = ChannelNorm(widths[-1])
        self.conv_out = CausalConv(widths[-1], config.colours, 3)

    def forward(self, z: Tensor, carry: Carry) -> Tensor:
        x = self.conv_in.stream(z, carry)
        for layer in (*self.middle, *self._ascent()):
            x = layer(x, carry)
        return out_of_patches(self.conv_out.stream(F.silu(self.norm_out(x)), carry), self.pixel_patch)

    def _ascent(self) -> Iterator[nn.Module]:
        for layer in self.up:
            if isinstance(layer, LastLevel):
                yield from layer.layers
            else:
                yield layer


class WanVAE(nn.Module):
    """Pixels in [-1, 1] to latents as the DiT wants them, and back."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = WanEncoder(config)
        self.quant = nn.Conv3d(2 * config.channels, 2 * config.channels, 1)
        self.unquant = nn.Conv3d(config.channels, config.channels, 1)
        self.decoder = WanDecoder(config)
        self._kept: tuple[Tensor, Tensor] | None = None

    def encode(self, pixels_BTCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        """Latents [B, F, C, Y/S, X/S] with S the spatial stride. Frames come as 1 + 4n at the start of an epoch
        and 4n after it."""
        check_frames(pixels_BTCYX.shape[1], lead=0 if state else 1)
        carry = Carry(state)
        return self.normalised(self.encoder(pixels_BTCYX.transpose(1, 2), carry)), carry.finish()

    def decode(self, latents_BFCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        """Pixels [B, T, 3, SY, SX], clamped."""
        carry = Carry(state)
        return self.decoder(self.unquantised(latents_BFCYX), carry).clamp(-1, 1).transpose(
            1, 2
        ), carry.finish()

    def normalised(self, answer_BCTYX: Tensor) -> Tensor:
        """Latents [B, F, C, Y, X] of the encoder's answer."""
        moments = self.quant(answer_BCTYX)
        mean, std = self._statistics(moments)
        return ((moments.chunk(2, dim=1)[0] - mean) / std).transpose(1, 2)

    def unquantised(self, latents_BFCYX: Tensor) -> Tensor:
        """The decoder's input, [B, C, F, Y, X]."""
        mean, std = self._statistics(latents_BFCYX)
        return self.unquant(latents_BFCYX.transpose(1, 2) * std + mean)

    def _statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and std of the latents, broadcast over [B, C, T, Y, X]. Kept: bringing them to a GPU would
        make it wait."""
        if self._kept is None or (self._kept[0].device, self._kept[0].dtype) != (like.device, like.dtype):
            count = self.config.channels
            with torch.inference_mode(mode=False):  # gradients may pass later
                mean = torch.tensor(self.config.mean or (0.0,) * count, device=like.device, dtype=like.dtype)
                std = torch.tensor(self.config.std or (1.0,) * count, device=like.device, dtype=like.dtype)
                self._kept = mean.view(-1, 1, 1, 1), std.view(-1, 1, 1, 1)
        return self._kept


def into_patches(x_BCTYX: Tensor, side: int) -> Tensor:
    """Each square of pixels as channels, by colour, column and row."""
    if side == 1:
        return x_BCTYX
    x = x_BCTYX.unflatten(4, (-1, side)).unflatten(3, (-1, side))
    return x.permute(0, 1, 6, 4, 2, 3, 5).flatten(1, 3)


def out_of_patches(x_BCTYX: Tensor, side: int) -> Tensor:
    """Invert `into_patches`."""
    if side == 1:
        return x_BCTYX
    x = x_BCTYX.unflatten(1, (-1, side, side))
    return x.permute(0, 1, 4, 5, 3, 6, 2).flatten(5, 6).flatten(3, 4)


def check_frames(frames: int, *, lead: int) -> None:
    """Assert that pixel frames fill whole latent frames, the first `lead` of them standing alone."""
    whole = frames >= lead and (frames - lead) % TEMPORAL_STRIDE == 0
    assert whole, f"{frames} frames do not fill whole latent frames"
