"""How many pixels a latent cell has is its VAE's, and is written where sizes are."""

from __future__ import annotations

from dataclasses import asdict, replace

import msgspec
import pytest

from millstream.core.config import ModelSpec, StreamConfig, VAEConfig
from millstream.core.errors import ConfigError, EnvelopeRefused
from millstream.core.presets import MODELS
from tests.unit.models_for_tests import tiny_engine
from tests.unit.one_chunk import plan_chunk

FINE = MODELS["wan2.2-ti2v-5b"]


@pytest.mark.parametrize("spec", MODELS.values(), ids=list(MODELS))
def test_every_models_stream_has_the_stride_of_its_vae(spec: ModelSpec) -> None:
    cells = tuple(side // spec.vae.spatial_stride for side in (spec.stream.height, spec.stream.width))
    assert spec.stream.latent_size == cells
    assert all(side % spec.dit.patch == 0 for side in cells)


def test_a_frame_of_the_5b_at_its_own_size_is_44_by_80_cells() -> None:
    assert FINE.stream.latent_size == (44, 80)


def test_a_size_that_does_not_fit_is_told_the_multiple_and_the_nearest_size() -> None:
    with pytest.raises(ConfigError, match="in multiples of 32, got 720x1280; try 704x1280"):
        replace(FINE.stream, height=720)
    with pytest.raises(ConfigError, match="in multiples of 16, got 714x1280; try 720x1280"):
        StreamConfig(height=714, width=1280)


@pytest.mark.parametrize("stride", [0, -8, 65])
def test_a_stride_that_no_vae_has_is_refused(stride: int) -> None:
    with pytest.raises(ConfigError, match="stride must be 1 to 64"):
        StreamConfig(stride=stride)


def test_a_model_and_its_stream_must_agree() -> None:
    with pytest.raises(ConfigError, match="make the stream with stride=16"):
        ModelSpec(name="x", dit=FINE.dit, vae=FINE.vae, stream=StreamConfig())
    with pytest.raises(ConfigError, match="wan-tiny has 8 pixels a latent cell and the stream 16"):
        tiny_engine().session(
            "sea", config=replace(tiny_engine().spec.stream, stride=16, height=64, width=64)
        )


def test_configurations_and_envelopes_from_before_are_read_with_8_pixels_a_cell() -> None:
    config = asdict(StreamConfig())
    config.pop("stride")
    assert msgspec.convert(config, StreamConfig) == StreamConfig()
    parcel = plan_chunk(tiny_engine().session("sea"))
    assert parcel is not None
    said = msgspec.to_builtins(parcel.envelope)
    assert said.pop("stride") == 8
    assert msgspec.convert(said, type(parcel.envelope)) == parcel.envelope


@pytest.mark.parametrize(("stride", "reason"), [(16, "2x2 latents carries"), (0, "stride must be")])
def test_latents_of_another_stride_are_refused_before_they_are_sent(stride: int, reason: str) -> None:
    parcel = plan_chunk(tiny_engine().session("sea", height=32, width=32))
    assert parcel is not None
    other = replace(parcel, envelope=msgspec.structs.replace(parcel.envelope, stride=stride))
    with pytest.raises(EnvelopeRefused, match=reason):
        other.validate()


def test_a_vae_takes_pixels_in_patches_of_1_2_or_4() -> None:
    with pytest.raises(ConfigError, match="pixel_patch must be"):
        VAEConfig(pixel_patch=3)
