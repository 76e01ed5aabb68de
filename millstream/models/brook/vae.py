"""Brook's causal video VAE: 8x in space, 4x in time, with a decoder thin enough for two CPU cores.

A latent frame stands for four pixel frames. The network is two-dimensional but for one causal convolution
over latent frames on either side, so streaming needs two tails. At the start of an epoch the first picture is
shown to the encoder four times, and of the four that come back only the last is kept: the first latent is one
pixel frame.
Shapes: B batch, F latent frames, T pixel frames, C channels, Y and X rows and columns.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.core.config import TEMPORAL_STRIDE, BrookVAEConfig
from millstream.models.carry import Carry, VAEState

PAST = 2
"""Latent frames before the current one that either side sees."""


class BrookResBlock(nn.Module):
    """Two convolutions beside the stream; without norms, which would cost more than they bring at this
    width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        for parameter in self.conv2.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.silu(self.conv1(F.silu(x))))


def blocks(width: int, count: int) -> nn.Sequential:
    return nn.Sequential(*(BrookResBlock(width) for _ in range(count)))


class BrookEncoder(nn.Module):
    """Each frame alone down to latent size, then four frames and the past into one latent frame."""

    def __init__(self, config: BrookVAEConfig) -> None:
        super().__init__()
        wide, middle, thin = config.widths
        self.stem = nn.Conv2d(3 * 4, thin, 3, padding=1)
        self.fine = BrookResBlock(thin)
        self.down1 = nn.Conv2d(4 * thin, middle, 3, padding=1)
        self.quarter = BrookResBlock(middle)
        self.down2 = nn.Conv2d(4 * middle, wide, 3, padding=1)
        self.gather = nn.Conv2d(TEMPORAL_STRIDE * wide, wide, 1)
        self.past = nn.Conv2d((PAST + 1) * wide, wide, 3, padding=1)
        self.body = blocks(wide, 2)
        self.out = nn.Conv2d(wide, 2 * config.channels, 3, padding=1)

    def forward(self, pixels_BTCYX: Tensor, carry: Carry) -> Tensor:
        """Mean and log-variance [B, F, 2C, Y/8, X/8] of whole groups of four frames."""
        x = self.fine(self.stem(F.pixel_unshuffle(pixels_BTCYX.flatten(0, 1), 2)))
        x = self.quarter(self.down1(F.pixel_unshuffle(x, 2)))
        x = self.down2(F.pixel_unshuffle(x, 2))
        frames = self.gather(x.unflatten(0, (-1, TEMPORAL_STRIDE)).flatten(1, 2))
        frames = self.past(with_past(frames.unflatten(0, (pixels_BTCYX.shape[0], -1)), carry))
        return self.out(F.silu(self.body(frames))).unflatten(0, (pixels_BTCYX.shape[0], -1))


class BrookDecoder(nn.Module):
    """Most of the work at latent size; what is done at picture size is one convolution and a shuffle."""

    def __init__(self, config: BrookVAEConfig) -> None:
        super().__init__()
        wide, middle, thin = config.widths
        self.past = nn.Conv2d((PAST + 1) * config.channels, wide, 3, padding=1)
        self.body = blocks(wide, config.blocks[0])
        self.spread = nn.Conv2d(wide, TEMPORAL_STRIDE * middle, 1)
        self.up1 = nn.Conv2d(middle, 4 * middle, 3, padding=1)
        self.quarter = blocks(middle, config.blocks[1])
        self.up2 = nn.Conv2d(middle, 4 * thin, 3, padding=1)
        self.fine = blocks(thin, config.blocks[2])
        self.out = nn.Conv2d(thin, 3 * 4, 3, padding=1)

    def forward(self, latents_BFCYX: Tensor, carry: Carry) -> Tensor:
        """[B, 4F, 3, 8Y, 8X]"""
        x = self.spread(self.body(self.past(with_past(latents_BFCYX, carry))))
        x = x.unflatten(1, (TEMPORAL_STRIDE, -1)).flatten(0, 1)
        x = self.quarter(_shuffled(self.up1(x)))
        x = self.fine(_shuffled(self.up2(x)))
        return F.pixel_shuffle(self.out(F.silu(x)), 2).unflatten(0, (latents_BFCYX.shape[0], -1))


class BrookVAE(nn.Module):
    """Pixels in [-1, 1] to latents as the DiT wants them, and back."""

    def __init__(self, config: BrookVAEConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = BrookEncoder(config)
        self.decoder = BrookDecoder(config)
        self.latent_mean = nn.Parameter(torch.zeros(config.channels), requires_grad=False)
        self.latent_std = nn.Parameter(torch.ones(config.channels), requires_grad=False)

    def moments(self, pixels_BTCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, Tensor, VAEState]:
        """Mean and log-variance of the raw latents."""
        lead = 0 if state else 1
        whole = pixels_BTCYX.shape[1] >= lead and (pixels_BTCYX.shape[1] - lead) % TEMPORAL_STRIDE == 0
        assert whole, f"{pixels_BTCYX.shape[1]} frames do not fill whole latent frames"
        if lead:
            pixels_BTCYX = torch.cat(
                [pixels_BTCYX[:, :1].expand(-1, TEMPORAL_STRIDE - 1, -1, -1, -1), pixels_BTCYX], dim=1
            )
        carry = Carry(state)
        mean, log_variance = self.encoder(pixels_BTCYX, carry).chunk(2, dim=2)
        return mean, log_variance, carry.finish()

    def reconstruct(self, raw_BFCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        """Pixels of raw latents, not clamped."""
        carry = Carry(state)
        pixels = self.decoder(raw_BFCYX, carry)
        return pixels[:, TEMPORAL_STRIDE - 1 :] if carry.starts_epoch else pixels, carry.finish()

    def encode(self, pixels_BTCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        """Latents [B, F, C, Y/8, X/8]. Frames come as 1 + 4n at the start of an epoch and 4n after it."""
        mean, _, state = self.moments(pixels_BTCYX, state)
        return (mean - self._channels(self.latent_mean)) / self._channels(self.latent_std), state

    def decode(self, latents_BFCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        """Pixels [B, T, 3, 8Y, 8X], clamped."""
        raw = latents_BFCYX * self._channels(self.latent_std) + self._channels(self.latent_mean)
        pixels, state = self.reconstruct(raw, state)
        return pixels.clamp(-1, 1), state

    @staticmethod
    def _channels(statistic: Tensor) -> Tensor:
        return statistic.view(-1, 1, 1)


def with_past(frames_BFCYX: Tensor, carry: Carry) -> Tensor:
    """Each frame with the two before it, side by side in the channels: [B*F, 3C, Y, X]."""
    longer = carry.extend(frames_BFCYX.transpose(1, 2), PAST).transpose(1, 2)
    count = frames_BFCYX.shape[1]
    return torch.cat([longer[:, i : i + count] for i in range(PAST + 1)], dim=2).flatten(0, 1)


def _shuffled(x: Tensor) -> Tensor:
    """Twice the size. In channels-last, which the shuffle loses and a CPU convolves twice as fast."""
    return F.pixel_shuffle(x, 2).contiguous(memory_format=torch.channels_last)
