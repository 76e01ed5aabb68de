"""Bytes and pixels, there and back; and frames copied to the bit."""

from __future__ import annotations

import pytest
import torch

from millstream.ops.pictures import copy_frames, to_pictures
from millstream.ops.pixels import from_bytes, to_bytes


def test_every_byte_survives_the_way_there_and_back() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_bytes(from_bytes(every)), every)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pixels_are_clamped_and_left_as_they_are(dtype: torch.dtype) -> None:
    pixels = torch.tensor([-3.0, -1.0, 0.0, 1.0, 7.0], dtype=dtype)
    kept = pixels.clone()
    assert to_bytes(pixels).tolist() == [0, 0, 128, 255, 255]
    assert torch.equal(pixels, kept)


def test_pictures_hold_the_same_bytes_with_colours_side_by_side() -> None:
    pixels = torch.rand(2, 3, 4, 5) * 2.2 - 1.1
    assert torch.equal(to_pictures(pixels), to_bytes(pixels).permute(0, 2, 3, 1))


def bits(*shape: int) -> torch.Tensor:
    """Any, as bfloat16: no-numbers with a message among them."""
    return torch.randint(-(2**15), 2**15, shape, dtype=torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("channels", [3, 12, 16, 96])
@pytest.mark.parametrize("pad", [0, 1])
def test_frames_are_copied_into_a_rim_and_out_of_it_to_the_bit(channels: int, pad: int) -> None:
    canvas = bits(4, 5 + 2 * pad, 6 + 2 * pad, channels)
    frames = bits(2, 5, 6, channels)
    expected = canvas.clone()
    inside = (slice(1, 3), slice(pad, pad + 5), slice(pad, pad + 6))
    expected.view(torch.int16)[inside] = frames.view(torch.int16)
    copy_frames(canvas[inside], frames)
    assert torch.equal(canvas.view(torch.int16), expected.view(torch.int16))
    back = torch.empty_like(frames)
    copy_frames(back, canvas[inside])
    assert torch.equal(back.view(torch.int16), frames.view(torch.int16))


def test_frames_that_lie_channels_first_are_copied_too() -> None:
    canvas = torch.zeros(2, 5, 6, 16)
    frames = torch.randn(16, 2, 5, 6).permute(1, 2, 3, 0)
    copy_frames(canvas, frames)
    assert torch.equal(canvas, frames)
