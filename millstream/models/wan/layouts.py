"""Names of our parameters in checkpoints: in the original Wan files and in the diffusers ones.

Names only. A layout is a function from our name to theirs, so a translation is a dictionary built from a
module's own parameters, and its inverse is that dictionary turned round: nothing is guessed from patterns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Literal

Layout = Literal["original", "diffusers"]
Part = Literal["dit", "vae", "text"]

_DIT: dict[Layout, tuple[tuple[str, str], ...]] = {
    "original": (
        (r"^patch_in\.", "patch_embedding."),
        (r"^text_in\.up\.", "text_embedding.0."),
        (r"^text_in\.down\.", "text_embedding.2."),
        (r"^time_in\.up\.", "time_embedding.0."),
        (r"^time_in\.down\.", "time_embedding.2."),
        (r"^time_out\.", "time_projection.1."),
        (r"^head\.proj\.", "head.head."),
        (r"\.cross_norm\.", ".norm3."),
        (r"\.ffn\.up\.", ".ffn.0."),
        (r"\.ffn\.down\.", ".ffn.2."),
    ),
    "diffusers": (
        (r"^patch_in\.", "patch_embedding."),
        (r"^text_in\.up\.", "condition_embedder.text_embedder.linear_1."),
        (r"^text_in\.down\.", "condition_embedder.text_embedder.linear_2."),
        (r"^time_in\.up\.", "condition_embedder.time_embedder.linear_1."),
        (r"^time_in\.down\.", "condition_embedder.time_embedder.linear_2."),
        (r"^time_out\.", "condition_embedder.time_proj."),
        (r"^head\.proj\.", "proj_out."),
        (r"^head\.modulation$", "scale_shift_table"),
        (r"\.modulation$", ".scale_shift_table"),
        (r"\.self_attn\.", ".attn1."),
        (r"\.cross_attn\.", ".attn2."),
        (r"\.(attn\d)\.([qkv])\.", r".\1.to_\2."),
        (r"\.(attn\d)\.o\.", r".\1.to_out.0."),
        (r"\.cross_norm\.", ".norm2."),
        (r"\.ffn\.up\.", ".ffn.net.0.proj."),
        (r"\.ffn\.down\.", ".ffn.net.2."),
    ),
}

_VAE: dict[Layout, tuple[tuple[str, str], ...]] = {
    "original": (
        (r"\.(norm1)\.weight$", ".residual.0.gamma"),
        (r"\.(conv1)\.", ".residual.2."),
        (r"\.(norm2)\.weight$", ".residual.3.gamma"),
        (r"\.(conv2)\.", ".residual.6."),
        (r"^quant\.", "conv1."),
        (r"^unquant\.", "conv2."),
        (r"^(encoder|decoder)\.conv_in\.", r"\1.conv1."),
        (r"^(encoder|decoder)\.norm_out\.weight$", r"\1.head.0.gamma"),
        (r"^(encoder|decoder)\.conv_out\.", r"\1.head.2."),
        (r"^encoder\.down\.", "encoder.downsamples."),
        (r"^decoder\.up\.", "decoder.upsamples."),
        (r"^(encoder\.downsamples\.\d+)\.layers\.", r"\1.downsamples."),  # levels, as Wan 2.2's
        (r"^(decoder\.upsamples\.\d+)\.layers\.", r"\1.upsamples."),
        (r"samples\.(\d+)\.conv\.", r"samples.\1.resample.1."),
        (r"\.middle\.1\.norm\.weight$", ".middle.1.norm.gamma"),
        (r"\.qkv\.", ".to_qkv."),
    ),
    "diffusers": (
        (r"\.(norm1|norm2|norm_out)\.weight$", r".\1.gamma"),
        (r"\.shortcut\.", ".conv_shortcut."),
        (r"^quant\.", "quant_conv."),
        (r"^unquant\.", "post_quant_conv."),
        (r"\.middle\.0\.", ".mid_block.resnets.0."),
        (r"\.middle\.2\.", ".mid_block.resnets.1."),
        (r"\.middle\.1\.norm\.weight$", ".middle.1.norm.gamma"),
        (r"\.middle\.1\.", ".mid_block.attentions.0."),
        (r"\.qkv\.", ".to_qkv."),
        (r"^(encoder\.down\.\d+)\.conv\.", r"\1.resample.1."),
        (r"^(encoder\.down\.\d+)\.layers\.\d+\.conv\.", r"\1.downsampler.resample.1."),
        (r"^(encoder\.down\.\d+)\.layers\.\d+\.time_conv\.", r"\1.downsampler.time_conv."),
        (r"^(decoder\.up)\.(\d+)\.layers\.\d+\.conv\.", r"\1_blocks.\2.upsampler.resample.1."),
        (r"^(decoder\.up)\.(\d+)\.layers\.\d+\.time_conv\.", r"\1_blocks.\2.upsampler.time_conv."),
        (r"^(decoder\.up)\.(\d+)\.layers\.", r"\1_blocks.\2.resnets."),
        (r"^(encoder\.down\.\d+)\.layers\.", r"\1.resnets."),
        (r"^encoder\.down\.", "encoder.down_blocks."),
        (r"^(decoder\.up\.\d+)\.conv\.", r"\1.resample.1."),
    ),
}

_TEXT_ORIGINAL = (
    (r"^shared\.weight$", "token_embedding.weight"),
    (r"^encoder\.final_layer_norm\.", "norm."),
    (
        r"^encoder\.block\.(\d+)\.layer\.0\.SelfAttention\.relative_attention_bias\.",
        r"blocks.\1.pos_embedding.embedding.",
    ),
    (r"^encoder\.block\.(\d+)\.layer\.0\.SelfAttention\.", r"blocks.\1.attn."),
    (r"^encoder\.block\.(\d+)\.layer\.0\.layer_norm\.", r"blocks.\1.norm1."),
    (r"^encoder\.block\.(\d+)\.layer\.1\.layer_norm\.", r"blocks.\1.norm2."),
    (r"^encoder\.block\.(\d+)\.layer\.1\.DenseReluDense\.wi_0\.", r"blocks.\1.ffn.gate.0."),
    (r"^encoder\.block\.(\d+)\.layer\.1\.DenseReluDense\.wi_1\.", r"blocks.\1.ffn.fc1."),
    (r"^encoder\.block\.(\d+)\.layer\.1\.DenseReluDense\.wo\.", r"blocks.\1.ffn.fc2."),
)


def translation(part: Part, layout: Layout, ours: Iterable[str]) -> dict[str, str]:
    """Return the layout's name for each of ours."""
    names = list(ours)
    rename = _renamer(part, layout, names)
    table = {name: rename(name) for name in names}
    assert len(set(table.values())) == len(table), "two of our names became one"
    return table


def _renamer(part: Part, layout: Layout, names: list[str]) -> Callable[[str], str]:
    if part == "dit":
        return lambda name: _rewrite(name, _DIT[layout])
    if part == "text":
        return lambda name: name if layout == "diffusers" else _rewrite(name, _TEXT_ORIGINAL)
    if layout == "original":
        return lambda name: _rewrite(name, _VAE["original"])
    per_level = _layers_per_level(names)
    return lambda name: _nest_up_blocks(_rewrite(name, _VAE["diffusers"]), per_level)


def _rewrite(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _layers_per_level(names: list[str]) -> int:
    """A decoder without levels of their own is a flat list: the first upsampling ends the first level."""
    upsamplings = [int(m[1]) for name in names if (m := re.match(r"decoder\.up\.(\d+)\.conv\.", name))]
    return min(upsamplings, default=0) + 1


def _nest_up_blocks(name: str, per_level: int) -> str:
    match = re.match(r"decoder\.up\.(\d+)\.(.+)", name)
    if not match:
        return name
    level, place = divmod(int(match[1]), per_level)
    inner = "upsamplers.0" if place == per_level - 1 else f"resnets.{place}"
    return f"decoder.up_blocks.{level}.{inner}.{match[2]}"
