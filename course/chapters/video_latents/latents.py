"""Pictures to latents and back with Brook's VAE: how many numbers are left, and how much of the pictures."""

from __future__ import annotations

import math

import torch

from course.brook import brook, clip
from course.reader import Reader
from millstream.core.config import TEMPORAL_STRIDE, pixel_frames
from millstream.core.errors import CourseError


@torch.no_grad()
def run(reader: Reader, frames: int = 3, size: int = 64) -> None:
    """`frames` latent frames of pictures with `size` pixels a side."""
    if frames < 1 or size < 16 or size % 16:
        raise CourseError(f"--frames must be 1 or more and --size a multiple of 16, got {frames} and {size}")
    vae = brook().vae
    count = pixel_frames(0, frames)
    guess = reader.predict(
        f"the first latent frame is one picture, each later one {TEMPORAL_STRIDE}. How many pictures are "
        f"{frames}?"
    )
    reader.reveal(guess, count, by="core.config.pixel_frames: 4 n - 3")
    pixels = clip(count, size)
    latents, _ = vae.encode(pixels)
    reader.say(
        f"pictures {tuple(pixels.shape[1:])} become latents {tuple(latents.shape[1:])}: frames, channels, "
        "rows, columns"
    )
    assert latents.shape[1:] == (frames, 8, size // 8, size // 8), f"{tuple(latents.shape)}"
    reader.say(
        f"{pixels.numel()} numbers become {latents.numel()}, {pixels.numel() / latents.numel():.0f} times fewer"
    )
    again, _ = vae.decode(latents)
    assert again.shape == pixels.shape, f"{tuple(again.shape)} came back"
    found = _psnr(again, pixels)
    blank = _psnr(pixels.mean(dim=(1, 3, 4), keepdim=True).expand_as(pixels), pixels)
    reader.measured(f"what comes back: PSNR {found:.1f} dB; one grey for all of it would be {blank:.1f} dB")
    assert found > blank + 5, f"{found} dB against {blank} dB"


def _psnr(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the PSNR in dB, for pixels in -1 to 1."""
    return 10 * math.log10(4 / float((found - expected).square().mean()))
