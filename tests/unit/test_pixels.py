"""Bytes and pixels, there and back."""

from __future__ import annotations

import pytest
import torch

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
