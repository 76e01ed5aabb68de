"""Brook as CPUs run it: blocks in bytes, a thin decoder, what both leave alone, and how far they are from
float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from millstream.core.errors import WeightsError
from millstream.core.speed import Speed
from millstream.engine.engine import Engine
from millstream.models.brook.files import BUNDLED, find_beside, ranges_path, thin_decoder_path
from millstream.models.brook.int8 import int8_layers, read_ranges, write_ranges
from millstream.models.brook.thin import THIN, load_thin_decoder, save_thin_decoder
from millstream.models.brook.vae import BrookDecoder, BrookVAE
from millstream.models.carry import VAEState
from millstream.ops.int8 import Int8Linear, Range, is_available
from millstream.train.evaluate.ranges import measure_ranges

pytestmark = pytest.mark.slow

IN_BYTES = pytest.mark.skipif(not is_available(), reason="this build of torch has no oneDNN")
PROMPT = "a large red balloon rising over the sea at noon in clear weather"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def plain() -> Engine:
    return Engine("brook", weights=BUNDLED, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def quick() -> Engine:
    """As a CPU with VNNI runs it."""
    return Engine(
        "brook", weights=BUNDLED, device="cpu", dtype="float32", speed=Speed(int8=True, thin_decoder=True)
    )


def test_the_bundled_model_has_a_range_for_each_layer(plain: Engine) -> None:
    layers = int8_layers(plain.model.dit)
    assert len(layers) == 8 * plain.spec.dit.layers
    assert read_ranges(ranges_path(BUNDLED)).keys() == layers.keys()


def test_ranges_are_measured_where_the_layers_see_them(plain: Engine) -> None:
    found = measure_ranges(plain.model, 1, config=plain.stream_config(height=64, width=64))
    assert found.keys() == int8_layers(plain.model.dit).keys()
    assert all(low < high for low, high in found.values())
    assert found["blocks.0.self_attn.q"] == found["blocks.0.self_attn.v"], "they have the same input"
    assert found["blocks.0.ffn.down"].low > -0.2, "GELU goes no lower"
    assert not any(module._forward_pre_hooks for module in plain.model.dit.modules()), "hooks are gone"


def test_ranges_come_back_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "a.int8.json"
    write_ranges(path, {"blocks.0.x": Range(-1.5, 2.0)})
    assert read_ranges(path) == {"blocks.0.x": (-1.5, 2.0)}
    path.write_text('{"blocks.0.x": [1]}')
    with pytest.raises(WeightsError, match="train ranges"):
        read_ranges(path)


def test_what_lies_beside_weights_is_found_there_and_nowhere_else(tmp_path: Path) -> None:
    weights = str(tmp_path / "mine.safetensors")
    assert find_beside([weights]) == (None, None)
    write_ranges(ranges_path(weights), {})
    assert find_beside([weights]) == (tmp_path / "mine.int8.json", None)
    thin_decoder_path(weights).touch()
    assert find_beside([weights]).thin_decoder == tmp_path / "mine.decoder.safetensors"
    assert find_beside([weights], [("a LoRA changes activations", 1.0)]).ranges is None
    assert find_beside(["random"]) == (None, None)
    assert None not in find_beside([BUNDLED])


def test_a_thin_decoder_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "thin.safetensors"
    decoder = BrookDecoder(THIN)
    save_thin_decoder(path, decoder)
    loaded = load_thin_decoder(path, CPU, torch.float32)
    for name, value in decoder.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value.bfloat16().float())
    path.write_bytes(b"nothing")
    with pytest.raises(WeightsError, match="cannot be read"):
        load_thin_decoder(path, CPU, torch.float32)


@IN_BYTES
def test_the_thin_decoder_shows_what_the_whole_one_does(plain: Engine, quick: Engine) -> None:
    """Of latents that a stream has: a decoder learnt on those knows no others."""
    latents = streamed_latents(plain)
    whole_state: VAEState = ()
    thin_state: VAEState = ()
    for chunk in latents.split(3, dim=1):
        with torch.inference_mode():
            expected, whole_state = plain.model.vae.decode(chunk, whole_state)
            found, thin_state = quick.model.vae.decode(chunk, thin_state)
        assert psnr(found, expected) > 34


@IN_BYTES
def test_a_quick_stream_shows_the_same_scene(plain: Engine, quick: Engine) -> None:
    config = plain.stream_config(height=64, width=64, seed=3)
    frames = [
        torch.cat(
            [torch.from_numpy(chunk.frames) for chunk in engine.session(PROMPT, config=config).stream(3)]
        ).float()
        for engine in (plain, quick)
    ]
    assert not torch.equal(*frames)
    assert torch.corrcoef(torch.stack([each.flatten() for each in frames]))[0, 1] > 0.9


@IN_BYTES
def test_the_same_seed_gives_the_same_bits(quick: Engine) -> None:
    config = quick.stream_config(height=64, width=64)
    first, second = (
        [chunk.frames.tobytes() for chunk in quick.session(PROMPT, config=config).stream(2)] for _ in range(2)
    )
    assert first == second


@IN_BYTES
def test_what_is_small_or_seldom_stays_in_full_precision(quick: Engine) -> None:
    dit = quick.model.dit
    block = next(iter(dit.blocks))
    assert isinstance(block.self_attn.q, Int8Linear)
    for layer in (block.cross_attn.k, block.cross_attn.v, dit.head.proj, dit.time_out):
        assert type(layer) is nn.Linear


@IN_BYTES
def test_weights_have_one_fingerprint_however_they_are_run(plain: Engine, quick: Engine) -> None:
    assert quick.fingerprint() == plain.fingerprint()


def test_weights_with_nothing_beside_them_are_left_plain() -> None:
    asked = Speed(int8=True, thin_decoder=True)
    assert not Engine("brook", weights="random", device="cpu", dtype="float32", speed=asked).speed.any


def streamed_latents(engine: Engine) -> torch.Tensor:
    from millstream.train.evaluate.streams import BatchStream

    stream = BatchStream(engine.model, [PROMPT], [0], config=engine.stream_config(height=128, width=128))
    return torch.cat([stream.advance_latents() for _ in range(2)], dim=1)


def psnr(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Of pixels in [-1, 1]."""
    return float(10 * torch.log10(4 / F.mse_loss(found, expected)))


def test_the_thin_decoder_is_a_third_of_the_whole_one(plain: Engine) -> None:
    assert isinstance(plain.model.vae, BrookVAE)
    thin, whole = (multiplications(decoder) for decoder in (BrookDecoder(THIN), plain.model.vae.decoder))
    assert thin < 0.36 * whole


def multiplications(decoder: BrookDecoder) -> int:
    """Count the multiplications of a latent cell: those done for it once, for each of its four pictures, and
    for each of their pixels' groups."""
    times = {"past": 1, "body": 1, "spread": 1, "up1": 4, "quarter": 16, "up2": 16, "fine": 64, "out": 64}
    layers = [
        (name.partition(".")[0], layer)
        for name, layer in decoder.named_modules()
        if isinstance(layer, nn.Conv2d)
    ]
    return sum(times[stage] * layer.weight.numel() for stage, layer in layers)
