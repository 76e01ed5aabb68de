"""Names that Wan's publishers gave their tensors, written out by hand, and where each belongs in our modules.

Read from the module definitions of Wan 2.1 (`wan/modules/model.py`, `vae.py`, `t5.py` and the sizes in
`wan/configs`) and of Wan 2.2's VAE (`vae2_2.py`), not from our layouts: files are written here without them.
Diffusers' own converter of the original files is a second witness.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from millstream.core.config import DiTConfig, TextConfig, VAEConfig
from millstream.core.presets import MODELS
from millstream.models.dit import CausalDiT
from millstream.models.wan.layouts import Part, translation
from millstream.models.wan.umt5 import UMT5Encoder
from millstream.models.wan.vae import WanVAE
from millstream.models.weights.fill import fill
from tests.unit.checkpoints import save


class Published(NamedTuple):
    name: str
    ours: str
    shape: tuple[int, ...]


def linear(name: str, ours: str, outer: int, *inner: int) -> Iterator[Published]:
    """A layer with a bias, as convolutions are too."""
    yield Published(f"{name}.weight", f"{ours}.weight", (outer, *inner))
    yield Published(f"{name}.bias", f"{ours}.bias", (outer,))


def norm(name: str, ours: str, *shape: int) -> Iterator[Published]:
    yield Published(name, ours, shape)


def published_dit(
    *, layers: int, width: int, ffn: int, text: int, time: int, channels: int
) -> Iterator[Published]:
    """WanModel of kind t2v."""
    yield from linear("patch_embedding", "patch_in", width, channels, 1, 2, 2)
    yield from linear("text_embedding.0", "text_in.up", width, text)
    yield from linear("text_embedding.2", "text_in.down", width, width)
    yield from linear("time_embedding.0", "time_in.up", width, time)
    yield from linear("time_embedding.2", "time_in.down", width, width)
    yield from linear("time_projection.1", "time_out", 6 * width, width)
    for n in range(layers):
        for kind in ("self_attn", "cross_attn"):
            for each in ("q", "k", "v", "o"):
                yield from linear(f"blocks.{n}.{kind}.{each}", f"blocks.{n}.{kind}.{each}", width, width)
            yield from norm(f"blocks.{n}.{kind}.norm_q.weight", f"blocks.{n}.{kind}.norm_q.weight", width)
            yield from norm(f"blocks.{n}.{kind}.norm_k.weight", f"blocks.{n}.{kind}.norm_k.weight", width)
        yield from norm(
            f"blocks.{n}.norm3.weight", f"blocks.{n}.cross_norm.weight", width
        )  # the only norm with weights
        yield from norm(f"blocks.{n}.norm3.bias", f"blocks.{n}.cross_norm.bias", width)
        yield from linear(f"blocks.{n}.ffn.0", f"blocks.{n}.ffn.up", ffn, width)
        yield from linear(f"blocks.{n}.ffn.2", f"blocks.{n}.ffn.down", width, ffn)
        yield Published(f"blocks.{n}.modulation", f"blocks.{n}.modulation", (1, 6, width))
    yield from linear("head.head", "head.proj", 4 * channels, width)
    yield Published("head.modulation", "head.modulation", (1, 2, width))


def residual(name: str, ours: str, inner: int, outer: int) -> Iterator[Published]:
    """ResidualBlock: norm, SiLU, convolution, norm, SiLU, dropout, convolution; a shortcut to another
    width."""
    yield from norm(f"{name}.residual.0.gamma", f"{ours}.norm1.weight", inner, 1, 1, 1)
    yield from linear(f"{name}.residual.2", f"{ours}.conv1", outer, inner, 3, 3, 3)
    yield from norm(f"{name}.residual.3.gamma", f"{ours}.norm2.weight", outer, 1, 1, 1)
    yield from linear(f"{name}.residual.6", f"{ours}.conv2", outer, outer, 3, 3, 3)
    if inner != outer:
        yield from linear(f"{name}.shortcut", f"{ours}.shortcut", outer, inner, 1, 1, 1)


def middle(name: str, ours: str, width: int) -> Iterator[Published]:
    yield from residual(f"{name}.middle.0", f"{ours}.middle.0", width, width)
    yield from norm(f"{name}.middle.1.norm.gamma", f"{ours}.middle.1.norm.weight", width, 1, 1)
    yield from linear(f"{name}.middle.1.to_qkv", f"{ours}.middle.1.qkv", 3 * width, width, 1, 1)
    yield from linear(f"{name}.middle.1.proj", f"{ours}.middle.1.proj", width, width, 1, 1)
    yield from residual(f"{name}.middle.2", f"{ours}.middle.2", width, width)


def published_vae(*, width: int, channels: int) -> Iterator[Published]:
    """WanVAE_ with dim_mult 1, 2, 4, 4, two residual blocks a level, time halved at the second and third."""
    one = width
    two = 2 * width
    four = 4 * width
    yield from linear("encoder.conv1", "encoder.conv_in", one, 3, 3, 3, 3)
    down = [
        (0, one, one),
        (1, one, one),
        (3, one, two),
        (4, two, two),
        (6, two, four),
        (7, four, four),
        (9, four, four),
    ]
    for n, inner, outer in [*down, (10, four, four)]:
        yield from residual(f"encoder.downsamples.{n}", f"encoder.down.{n}", inner, outer)
    for n, wide in ((2, one), (5, two), (8, four)):
        yield from linear(f"encoder.downsamples.{n}.resample.1", f"encoder.down.{n}.conv", wide, wide, 3, 3)
    for n, wide in ((5, two), (8, four)):
        yield from linear(
            f"encoder.downsamples.{n}.time_conv", f"encoder.down.{n}.time_conv", wide, wide, 3, 1, 1
        )
    yield from middle("encoder", "encoder", four)
    yield from norm("encoder.head.0.gamma", "encoder.norm_out.weight", four, 1, 1, 1)
    yield from linear("encoder.head.2", "encoder.conv_out", 2 * channels, four, 3, 3, 3)
    yield from linear("conv1", "quant", 2 * channels, 2 * channels, 1, 1, 1)
    yield from linear("conv2", "unquant", channels, channels, 1, 1, 1)
    yield from linear("decoder.conv1", "decoder.conv_in", four, channels, 3, 3, 3)
    yield from middle("decoder", "decoder", four)
    up = [(0, four, four), (1, four, four), (2, four, four), (4, two, four), (5, four, four), (6, four, four)]
    for n, inner, outer in [
        *up,
        *((n, two, two) for n in (8, 9, 10)),
        *((n, one, one) for n in (12, 13, 14)),
    ]:
        yield from residual(f"decoder.upsamples.{n}", f"decoder.up.{n}", inner, outer)
    for n, wide in ((3, four), (7, four), (11, two)):
        yield from linear(f"decoder.upsamples.{n}.resample.1", f"decoder.up.{n}.conv", wide // 2, wide, 3, 3)
    for n in (3, 7):
        yield from linear(
            f"decoder.upsamples.{n}.time_conv", f"decoder.up.{n}.time_conv", 2 * four, four, 3, 1, 1
        )
    yield from norm("decoder.head.0.gamma", "decoder.norm_out.weight", one, 1, 1, 1)
    yield from linear("decoder.head.2", "decoder.conv_out", 3, one, 3, 3, 3)


def published_vae22(*, width: int, decoder_width: int, channels: int) -> Iterator[Published]:
    """Wan 2.2's: one level deeper (Down_ResidualBlock, Up_ResidualBlock), pixels as 12 channels."""
    down, up = "encoder.downsamples", "decoder.upsamples"
    one, two, four = width, 2 * width, 4 * width
    yield from linear("encoder.conv1", "encoder.conv_in", one, 12, 3, 3, 3)
    for n, inner, outer in ((0, one, one), (1, one, two), (2, two, four), (3, four, four)):
        yield from residual(f"{down}.{n}.downsamples.0", f"encoder.down.{n}.layers.0", inner, outer)
        yield from residual(f"{down}.{n}.downsamples.1", f"encoder.down.{n}.layers.1", outer, outer)
    for n, wide in ((0, one), (1, two), (2, four)):
        ours = f"encoder.down.{n}.layers.2.conv"
        yield from linear(f"{down}.{n}.downsamples.2.resample.1", ours, wide, wide, 3, 3)
    for n, wide in ((1, two), (2, four)):
        ours = f"encoder.down.{n}.layers.2.time_conv"
        yield from linear(f"{down}.{n}.downsamples.2.time_conv", ours, wide, wide, 3, 1, 1)
    yield from middle("encoder", "encoder", four)
    yield from norm("encoder.head.0.gamma", "encoder.norm_out.weight", four, 1, 1, 1)
    yield from linear("encoder.head.2", "encoder.conv_out", 2 * channels, four, 3, 3, 3)
    yield from linear("conv1", "quant", 2 * channels, 2 * channels, 1, 1, 1)
    yield from linear("conv2", "unquant", channels, channels, 1, 1, 1)
    one, two, four = decoder_width, 2 * decoder_width, 4 * decoder_width
    yield from linear("decoder.conv1", "decoder.conv_in", four, channels, 3, 3, 3)
    yield from middle("decoder", "decoder", four)
    for n, inner, outer in ((0, four, four), (1, four, four), (2, four, two), (3, two, one)):
        for i, before in ((0, inner), (1, outer), (2, outer)):
            yield from residual(f"{up}.{n}.upsamples.{i}", f"decoder.up.{n}.layers.{i}", before, outer)
    for n, wide in ((0, four), (1, four), (2, two)):
        ours = f"decoder.up.{n}.layers.3.conv"
        yield from linear(f"{up}.{n}.upsamples.3.resample.1", ours, wide, wide, 3, 3)
    for n in (0, 1):
        ours = f"decoder.up.{n}.layers.3.time_conv"
        yield from linear(f"{up}.{n}.upsamples.3.time_conv", ours, 2 * four, four, 3, 1, 1)
    yield from norm("decoder.head.0.gamma", "decoder.norm_out.weight", one, 1, 1, 1)
    yield from linear("decoder.head.2", "decoder.conv_out", 12, one, 3, 3, 3)


def published_text(
    *, layers: int, width: int, ffn: int, heads: int, head: int, buckets: int, words: int
) -> Iterator[Published]:
    """T5Encoder whose positions are not shared. What passes the GELU is `gate`, which transformers calls
    `wi_0`."""
    yield Published("token_embedding.weight", "shared.weight", (words, width))
    for n in range(layers):
        attention = f"encoder.block.{n}.layer.0"
        mlp = f"encoder.block.{n}.layer.1"
        yield Published(f"blocks.{n}.norm1.weight", f"{attention}.layer_norm.weight", (width,))
        for each in ("q", "k", "v"):
            yield Published(
                f"blocks.{n}.attn.{each}.weight",
                f"{attention}.SelfAttention.{each}.weight",
                (heads * head, width),
            )
        yield Published(
            f"blocks.{n}.attn.o.weight", f"{attention}.SelfAttention.o.weight", (width, heads * head)
        )
        yield Published(
            f"blocks.{n}.pos_embedding.embedding.weight",
            f"{attention}.SelfAttention.relative_attention_bias.weight",
            (buckets, heads),
        )
        yield Published(f"blocks.{n}.norm2.weight", f"{mlp}.layer_norm.weight", (width,))
        yield Published(f"blocks.{n}.ffn.gate.0.weight", f"{mlp}.DenseReluDense.wi_0.weight", (ffn, width))
        yield Published(f"blocks.{n}.ffn.fc1.weight", f"{mlp}.DenseReluDense.wi_1.weight", (ffn, width))
        yield Published(f"blocks.{n}.ffn.fc2.weight", f"{mlp}.DenseReluDense.wo.weight", (width, ffn))
    yield Published("norm.weight", "encoder.final_layer_norm.weight", (width,))


def on_meta(part: Part, model: str) -> nn.Module:
    spec = MODELS[model]
    with torch.device("meta"):
        if part == "text":
            return UMT5Encoder(spec.text)
        return CausalDiT(spec.dit) if part == "dit" else WanVAE(spec.vae)


TEXT = dict(layers=24, width=4096, ffn=10240, heads=64, head=64, buckets=32, words=256384)
SIZES = {
    ("dit", "wan2.1-t2v-1.3b"): (
        825,
        published_dit(layers=30, width=1536, ffn=8960, text=4096, time=256, channels=16),
    ),
    ("dit", "wan2.1-t2v-14b"): (
        1095,
        published_dit(layers=40, width=5120, ffn=13824, text=4096, time=256, channels=16),
    ),
    ("vae", "wan2.1-t2v-1.3b"): (194, published_vae(width=96, channels=16)),
    ("dit", "wan2.2-ti2v-5b"): (
        825,
        published_dit(layers=30, width=3072, ffn=14336, text=4096, time=256, channels=48),
    ),
    ("vae", "wan2.2-ti2v-5b"): (196, published_vae22(width=160, decoder_width=256, channels=48)),
    ("text", "wan2.1-t2v-1.3b"): (242, published_text(**TEXT)),
}
"""How many tensors Wan 2.1's and 2.2's files have, and all of them."""


@pytest.mark.parametrize(("part", "model"), SIZES)
def test_every_published_tensor_has_its_place_and_its_shape(part: Part, model: str) -> None:
    count, published = SIZES[part, model]
    tensors = list(published)
    ours = on_meta(part, model).state_dict()
    assert len(tensors) == count
    assert {each.ours: tuple(ours[each.ours].shape) for each in tensors} == {
        each.ours: each.shape for each in tensors
    }
    assert translation(part, "original", ours) == {each.ours: each.name for each in tensors}


def small(part: Part | Literal["vae22"]) -> tuple[nn.Module, list[Published]]:
    """A module of few numbers and the published names of what is in it."""
    with torch.device("meta"):
        if part == "dit":
            sizes = dict(layers=2, width=24, ffn=40, channels=4)
            config = DiTConfig(**sizes, heads=2, text_width=20, text_tokens=4, time_features=16)
            return CausalDiT(config), list(published_dit(**sizes, text=20, time=16))
        if part == "vae":
            downsample = (False, True, True)
            config = VAEConfig(
                width=4, multipliers=(1, 2, 4, 4), res_blocks=2, channels=4, downsample_time=downsample
            )
            return WanVAE(config), list(published_vae(width=4, channels=4))
        if part == "vae22":
            shape = dict(width=4, decoder_width=6, channels=4)
            return WanVAE(VAEConfig(**shape, pixel_patch=2, residual=True)), list(published_vae22(**shape))
        words = dict(layers=2, width=12, ffn=20, heads=2)
        config = TextConfig(**words, head_width=8, position_buckets=6, vocabulary=30)
        return UMT5Encoder(config), list(published_text(**words, head=8, buckets=6, words=30))


@pytest.mark.parametrize("kind", ["dit", "vae", "vae22", "text"])
def test_a_file_of_published_names_fills_a_module(kind: Part | Literal["vae22"], tmp_path: Path) -> None:
    """Every tensor is another, so that two in each other's place are seen."""
    module, published = small(kind)
    part = "vae" if kind == "vae22" else kind
    values: dict[str, Tensor] = {each.name: torch.randn(each.shape) for each in published}
    file = save(values, tmp_path / "published.safetensors")
    fill(module, part, [file], device="cpu", dtype=torch.float32)
    filled = module.state_dict()
    assert set(filled) == {each.ours for each in published}
    for each in published:
        assert torch.equal(filled[each.ours], values[each.name]), each


@pytest.mark.parametrize("prefix", ["model.", "model._fsdp_wrapped_module."])
def test_a_causal_student_as_it_is_published_fills_a_module(prefix: str, tmp_path: Path) -> None:
    """Self-Forcing, Causal-Forcing and its ++, One-Forcing, Self Gradient Forcing: one `.pt` file whose
    `generator_ema` is a wrapper that calls the network `model`; Wan's own names within."""
    module, published = small("dit")
    values: dict[str, Tensor] = {each.name: torch.randn(each.shape) for each in published}
    for name in ("patch_embedding.weight", "blocks.1.self_attn.norm_q.weight", "head.modulation"):
        assert name in values
    wrapped = {f"{prefix}{name}": value for name, value in values.items()}
    as_trained = {name: value + 1 for name, value in wrapped.items()}
    torch.save(
        {"generator": as_trained, "generator_ema": wrapped, "critic": {}}, tmp_path / "causal_forcing.pt"
    )
    fill(module, "dit", [tmp_path / "causal_forcing.pt"], device="cpu", dtype=torch.float32)
    filled = module.state_dict()
    for each in published:
        assert torch.equal(filled[each.ours], values[each.name]), each


@pytest.mark.slow
@pytest.mark.parametrize("part", ["dit", "vae"])
def test_diffusers_converter_puts_every_published_tensor_where_ours_does(part: Part) -> None:
    from diffusers.loaders import single_file_utils  # seconds, and who collects tests would pay them too

    module, published = small(part)
    convert = {
        "dit": single_file_utils.convert_wan_transformer_to_diffusers,
        "vae": single_file_utils.convert_wan_vae_to_diffusers,
    }[part]
    theirs = convert({each.name: torch.tensor(number) for number, each in enumerate(published)})
    to_diffusers = translation(part, "diffusers", module.state_dict())
    assert {name: int(number) for name, number in theirs.items()} == {
        to_diffusers[each.ours]: number for number, each in enumerate(published)
    }


def diffusers_vae22(levels: int) -> dict[str, str]:
    """Names of AutoencoderKLWan with is_residual=True for parameters of each kind, written out by hand."""
    names = {}
    for n in range(levels):
        for i in (0, 1):
            names[f"encoder.down.{n}.layers.{i}.conv1.bias"] = (
                f"encoder.down_blocks.{n}.resnets.{i}.conv1.bias"
            )
        for i in (0, 1, 2):
            names[f"decoder.up.{n}.layers.{i}.norm2.weight"] = (
                f"decoder.up_blocks.{n}.resnets.{i}.norm2.gamma"
            )
    for n in range(levels - 1):
        names[f"encoder.down.{n}.layers.2.conv.weight"] = (
            f"encoder.down_blocks.{n}.downsampler.resample.1.weight"
        )
        names[f"decoder.up.{n}.layers.3.conv.bias"] = f"decoder.up_blocks.{n}.upsampler.resample.1.bias"
    for n in (1, 2):
        names[f"encoder.down.{n}.layers.2.time_conv.bias"] = (
            f"encoder.down_blocks.{n}.downsampler.time_conv.bias"
        )
    for n in (0, 1):
        names[f"decoder.up.{n}.layers.3.time_conv.weight"] = (
            f"decoder.up_blocks.{n}.upsampler.time_conv.weight"
        )
    return names | {
        "encoder.down.1.layers.0.shortcut.weight": "encoder.down_blocks.1.resnets.0.conv_shortcut.weight",
        "decoder.up.2.layers.0.shortcut.weight": "decoder.up_blocks.2.resnets.0.conv_shortcut.weight",
        "encoder.conv_in.weight": "encoder.conv_in.weight",
        "decoder.norm_out.weight": "decoder.norm_out.gamma",
        "encoder.middle.1.qkv.weight": "encoder.mid_block.attentions.0.to_qkv.weight",
        "decoder.middle.2.conv2.bias": "decoder.mid_block.resnets.1.conv2.bias",
        "quant.bias": "quant_conv.bias",
        "unquant.weight": "post_quant_conv.weight",
    }


@pytest.mark.slow
def test_wan_22s_vae_has_diffusers_names_and_no_others() -> None:
    from diffusers import AutoencoderKLWan

    by_hand = diffusers_vae22(levels=4)
    spec = MODELS["wan2.2-ti2v-5b"]
    ours = on_meta("vae", spec.name).state_dict()
    table = translation("vae", "diffusers", ours)
    assert {name: table[name] for name in by_hand} == by_hand
    with torch.device("meta"):
        theirs = AutoencoderKLWan(
            base_dim=160,
            decoder_base_dim=256,
            z_dim=48,
            is_residual=True,
            in_channels=12,
            out_channels=12,
            patch_size=2,
            scale_factor_spatial=16,
        ).state_dict()
    assert {table[name]: tuple(value.shape) for name, value in ours.items()} == {
        name: tuple(value.shape) for name, value in theirs.items()
    }
