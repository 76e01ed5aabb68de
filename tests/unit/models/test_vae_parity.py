"""Our streaming VAE against diffusers' AutoencoderKLWan, in every split."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch

from millstream.core.config import VAEConfig, pixel_frames
from millstream.core.presets import WAN_VAE
from millstream.models.wan.layouts import translation
from millstream.models.wan.vae import WanVAE
from tests.unit.models_for_tests import VAE, relative_error, vae

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
SPLITS = [(3,), (1, 1, 1), (1, 2), (2, 1), (7,), (3, 3, 1), (1, 3, 3), (2, 2, 2, 1)]
CONFIGS = {
    "small": VAE,
    "wider": VAEConfig(width=8, res_blocks=1, channels=16),
    "Wan 2.2's": VAEConfig(width=4, decoder_width=6, channels=6, pixel_patch=2, residual=True),
    "Wan 2.2's, one block": VAEConfig(
        width=10, decoder_width=16, channels=48, res_blocks=1, pixel_patch=2, residual=True
    ),
}


def reference_of(model: WanVAE) -> AutoencoderKLWan:
    from diffusers import AutoencoderKLWan  # seconds, and who collects tests would pay them too

    c = model.config
    reference = AutoencoderKLWan(
        base_dim=c.width,
        z_dim=c.channels,
        dim_mult=list(c.multipliers),
        num_res_blocks=c.res_blocks,
        temperal_downsample=list(c.downsample_time),
        decoder_base_dim=c.decoder_width or None,
        is_residual=c.residual,
        in_channels=c.colours,
        out_channels=c.colours,
        patch_size=c.pixel_patch if c.pixel_patch > 1 else None,
        scale_factor_spatial=c.spatial_stride,
        latents_mean=[0.0] * c.channels,
        latents_std=[1.0] * c.channels,
    )
    names = translation("vae", "diffusers", model.state_dict())
    reference.load_state_dict({names[name]: weight for name, weight in model.state_dict().items()})
    return reference.eval().requires_grad_(False)


def scaled(latents: torch.Tensor, config: VAEConfig) -> tuple[torch.Tensor, torch.Tensor]:
    mean = torch.tensor(config.mean or (0.0,) * config.channels).view(1, 1, -1, 1, 1)
    std = torch.tensor(config.std or (1.0,) * config.channels).view(1, 1, -1, 1, 1)
    return mean, std


@cache
def as_the_reference_decodes(name: str, num_latents: int) -> tuple[WanVAE, torch.Tensor, torch.Tensor]:
    """A model, latents, and their frames."""
    model = vae(CONFIGS[name])
    latents = torch.randn(1, num_latents, model.config.channels, 4, 6)
    mean, std = scaled(latents, model.config)
    return (
        model,
        latents,
        reference_of(model).decode((latents * std + mean).transpose(1, 2)).sample.transpose(1, 2),
    )


@cache
def as_the_reference_encodes(name: str, num_latents: int) -> tuple[WanVAE, torch.Tensor, torch.Tensor]:
    """A model, frames, and their latents."""
    model = vae(CONFIGS[name])
    pixels = (
        torch.rand(
            1,
            pixel_frames(0, num_latents),
            3,
            4 * model.config.spatial_stride,
            6 * model.config.spatial_stride,
        )
        * 2
        - 1
    )
    moments = reference_of(model).encode(pixels.transpose(1, 2)).latent_dist.mean.transpose(1, 2)
    mean, std = scaled(moments, model.config)
    return model, pixels, (moments - mean) / std


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_any_split_decodes_to_the_reference_frames(name: str, split: tuple[int, ...]) -> None:
    model, latents, expected = as_the_reference_decodes(name, sum(split))
    state = ()
    parts = []
    for part in latents.split(split, dim=1):
        frames, state = model.decode(part, state)
        parts.append(frames)
    assert relative_error(torch.cat(parts, dim=1), expected) <= TOLERANCE


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_any_split_encodes_to_the_reference_latents(name: str, split: tuple[int, ...]) -> None:
    model, pixels, expected = as_the_reference_encodes(name, sum(split))
    sizes = [pixel_frames(0 if i == 0 else 1, count) for i, count in enumerate(split)]
    state = ()
    parts = []
    for part in pixels.split(sizes, dim=1):
        latents, state = model.encode(part, state)
        parts.append(latents)
    assert relative_error(torch.cat(parts, dim=1), expected) <= TOLERANCE


def test_the_first_chunk_gives_9_frames_and_later_ones_12() -> None:
    model = vae()
    first, state = model.decode(torch.randn(1, 3, 4, 2, 2))
    second, _ = model.decode(torch.randn(1, 3, 4, 2, 2), state)
    assert (first.shape[1], second.shape[1]) == (9, 12)


def test_a_state_can_be_kept_and_used_again() -> None:
    """The module holds nothing: two futures of one past do not touch each other."""
    model = vae()
    _, state = model.decode(torch.randn(1, 2, 4, 2, 2))
    kept = [tail.clone() for tail in state]
    one, other = torch.randn(2, 1, 1, 4, 2, 2).unbind(0)
    before, _ = model.decode(one, state)
    model.decode(other, state)
    after, _ = model.decode(one, state)
    assert torch.equal(before, after)
    assert all(torch.equal(a, b) for a, b in zip(kept, state, strict=True))


def test_the_future_changes_no_earlier_frame() -> None:
    model = vae()
    latents = torch.randn(1, 4, 4, 2, 2)
    changed = latents.clone()
    changed[:, 3] += 1
    frames = model.decode(latents)[0]
    other = model.decode(changed)[0]
    assert torch.equal(frames[:, :9], other[:, :9])
    assert not torch.equal(frames[:, 9:], other[:, 9:])


def test_latent_statistics_are_those_of_the_reference() -> None:
    from diffusers import AutoencoderKLWan

    defaults = AutoencoderKLWan(base_dim=4).config
    assert tuple(defaults.latents_mean) == WAN_VAE.mean
    assert tuple(defaults.latents_std) == WAN_VAE.std
