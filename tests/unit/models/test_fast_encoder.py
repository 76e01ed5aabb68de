"""The fast encoder against the plain one, on the twins of its kernels; and what the two fast networks
share."""

from __future__ import annotations

import pytest
import torch

from millstream.core.config import VAEConfig, pixel_frames
from millstream.core.speed import Speed
from millstream.engine.engine import Engine
from millstream.models.wan.channels_last import Canvases
from millstream.models.wan.fast_vae import FastVAE
from millstream.models.weights.fingerprint import fingerprint
from tests.unit.models_for_tests import VAE, pictures, relative_error, tiny_engine, vae
from tests.unit.rim_convolution import RimConvolution

SPLITS = [(3, 3), (1, 1, 2), (2, 3, 1), (1, 3, 3)]
"""Latent frames of each part."""


def pixels(latent_frames: int) -> torch.Tensor:
    return torch.rand(1, pixel_frames(0, latent_frames), 3, 32, 48) * 2 - 1


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize(
    "config", [VAE, VAEConfig(width=8, res_blocks=1, channels=16)], ids=["small", "wider"]
)
def test_any_split_encodes_to_the_plain_latents(config: VAEConfig, split: tuple[int, ...]) -> None:
    model = vae(config)
    video = pixels(sum(split))
    expected, end = model.encode(video)
    fast = FastVAE(model)
    state = ()
    parts = []
    sizes = [pixel_frames(0 if i == 0 else 1, count) for i, count in enumerate(split)]
    for part in video.split(sizes, dim=1):
        latents, state = fast.encode(part, state)
        parts.append(latents)
    assert relative_error(torch.cat(parts, dim=1), expected) <= 1e-5
    assert all(relative_error(found, wanted) <= 1e-5 for found, wanted in zip(state, end, strict=True))


def test_a_stream_may_change_between_fast_and_plain_at_any_chunk() -> None:
    model = vae()
    video = pixels(9)
    expected, _ = model.encode(video)
    fast = FastVAE(model)
    first, state = fast.encode(video[:, :9])
    second, state = model.encode(video[:, 9:21], state)
    third, _ = fast.encode(video[:, 21:], state)
    assert relative_error(torch.cat([first, second, third], dim=1), expected) <= 1e-5


def test_two_futures_of_one_past_do_not_touch_each_other() -> None:
    fast = FastVAE(vae())
    video = pixels(7)
    _, state = fast.encode(video[:, :9])
    kept = [tail.clone() for tail in state]
    before, _ = fast.encode(video[:, 9:17], state)
    fast.encode(video[:, 17:], state)
    after, _ = fast.encode(video[:, 9:17], state)
    assert torch.equal(before, after)
    assert all(torch.equal(a, b) for a, b in zip(kept, state, strict=True))


def test_another_convolution_serves_where_it_can() -> None:
    model = vae()
    own = RimConvolution()
    video = pixels(6)
    expected, _ = model.encode(video)
    fast = FastVAE(model, own)
    first, state = fast.encode(video[:, :9])
    second, _ = fast.encode(video[:, 9:], state)
    assert relative_error(torch.cat([first, second], dim=1), expected) <= 1e-5
    assert own.calls > 20


def test_encoding_and_decoding_in_turns_leave_each_other_alone() -> None:
    fast = FastVAE(vae())
    video = pixels(6)
    latents, encoding = fast.encode(video[:, :9])
    frames, decoding = fast.decode(latents)
    expected, _ = fast.encode(video[:, 9:], encoding)
    fast.decode(expected, decoding)
    found, _ = fast.encode(video[:, 9:], encoding)
    assert torch.equal(found, expected)
    assert frames.shape == video[:, :9].shape


def test_frames_that_fill_no_latent_are_refused() -> None:
    fast = FastVAE(vae())
    _, state = fast.encode(pixels(1))
    with pytest.raises(AssertionError, match="3 frames"):
        fast.encode(torch.zeros(1, 3, 3, 32, 48), state)


def test_the_same_weights_have_one_fingerprint() -> None:
    model = vae()
    assert fingerprint({"vae": FastVAE(model)}) == fingerprint({"vae": model})


def test_a_stream_that_encodes_its_own_pictures_shows_the_plain_ones() -> None:
    fast = Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32", speed=Speed(decoder=True))
    assert isinstance(fast.model.vae, FastVAE)
    found, expected = (pictures(engine, anchor="decoded") for engine in (fast, tiny_engine()))
    assert abs(found - expected).max() <= 1
    assert expected.std() > 10


def test_canvases_of_this_pass_and_the_one_before_are_kept() -> None:
    canvases = Canvases()
    like = torch.empty(0)

    def of(kind: int) -> torch.Tensor:
        canvases.begin((kind,))
        return canvases.get((2, 3), (0,), like)

    first = of(1)
    second = of(2)
    assert (of(1) is first, of(2) is second) == (True, True), "kinds that come in turns"
    assert of(2) is second
    assert of(1) is not first, "a kind that stayed away was let go"


def test_canvases_of_one_size_and_different_rims_are_different() -> None:
    canvases = Canvases()
    like = torch.empty(0)
    canvases.begin((1,))
    assert canvases.get((2, 3), (0,), like) is not canvases.get((2, 3), (1,), like)
