"""A decoder split into strips of rows: the pictures of the whole one, streaming; a strip that fails is said at once."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from millstream.core.errors import ConfigError
from millstream.models.wan.vae import WanVAE
from millstream.parallel.spatial import SplitVAE
from tests.unit.models_for_tests import relative_error, vae

CPU = torch.device("cpu")


def streamed(network: WanVAE | SplitVAE, latents: Tensor) -> Tensor:
    """Decoded two latent frames at a time."""
    state, found = (), []
    with torch.inference_mode():
        for start in range(0, latents.shape[1], 2):
            pixels, state = network.decode(latents[:, start : start + 2], state)
            found.append(pixels)
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("strips", [2, 3])
def test_strips_together_are_the_whole_picture(strips: int) -> None:
    latents = torch.randn(1, 5, 4, 7, 4)  # seven rows: strips of unequal height
    whole = vae()
    expected = streamed(whole, latents)
    found = streamed(SplitVAE(whole, [CPU] * strips), latents)
    assert found.shape == expected.shape == (1, 17, 3, 56, 32)
    assert relative_error(found, expected) < 1e-5


def test_encoding_stays_whole() -> None:
    whole, pixels = vae(), torch.randn(1, 5, 3, 16, 16)
    split = SplitVAE(whole, [CPU] * 2)
    with torch.inference_mode():
        assert torch.equal(split.encode(pixels)[0], whole.encode(pixels)[0])


def test_a_strip_that_fails_fails_all_at_once_and_the_next_pass_is_sound() -> None:
    whole, latents = vae(), torch.randn(1, 2, 4, 4, 4)
    split = SplitVAE(whole, [CPU] * 3)
    attention = split.decoders[1].middle[1].whole
    sound, attention.qkv = attention.qkv, torch.nn.Conv2d(1, 3, 1)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="channels"):
        streamed(split, latents)
    assert time.monotonic() - begun < 20
    attention.qkv = sound
    assert relative_error(streamed(split, latents), streamed(whole, latents)) < 1e-5


def test_a_picture_has_a_row_for_every_strip() -> None:
    with pytest.raises(ConfigError, match="2 latent rows do not make 3 strips"):
        SplitVAE(vae(), [CPU] * 3).decode(torch.randn(1, 1, 4, 2, 4))
    with pytest.raises(ConfigError, match="2 devices or more"):
        SplitVAE(vae(), [CPU])
