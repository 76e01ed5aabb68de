"""Names that Wan's publishers gave their tensors, written out by hand, and where each belongs in our modules.

Read from the module definitions of Wan 2.1 (`wan/modules/model.py`, `vae.py`, `t5.py` and the sizes in
`wan/configs`), not from our layouts: files are written here without them. Diffusers' own converter of the
original files is a second witness.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
    ("text", "wan2.1-t2v-1.3b"): (242, published_text(**TEXT)),
}
"""How many tensors Wan 2.1's files have, and all of them."""


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


def small(part: Part) -> tuple[nn.Module, list[Published]]:
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
        words = dict(layers=2, width=12, ffn=20, heads=2)
        config = TextConfig(**words, head_width=8, position_buckets=6, vocabulary=30)
        return UMT5Encoder(config), list(published_text(**words, head=8, buckets=6, words=30))


@pytest.mark.parametrize("part", ["dit", "vae", "text"])
def test_a_file_of_published_names_fills_a_module(part: Part, tmp_path: Path) -> None:
    """Every tensor is another, so that two in each other's place are seen."""
    module, published = small(part)
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
