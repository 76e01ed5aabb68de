"""Writes a DiT in any layout: ours, diffusers' or that of the original files, each with what its readers look
for beside it.

A part is split into files of whole tensors, each as long as fits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from millstream.core.config import DiTConfig, ModelSpec
from millstream.core.files import Staging
from millstream.models.weights.manifest import MANIFEST, Manifest, PartEntry
from millstream.models.weights.parts import Layout, canonical

SHARD_BYTES = 4 << 30


def in_shards(sizes: Mapping[str, int], most: int = SHARD_BYTES) -> list[list[str]]:
    """Names by file, from the bytes of each; a tensor larger than a file may be has one to itself."""
    shards: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not shards or size > room:
            shards.append([])
            room = most
        shards[-1].append(name)
        room -= size
    return shards


def shard_names(stem: str, count: int) -> list[str]:
    return [f"{stem}-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


STEM = "diffusion_pytorch_model"
"""Stem of the file names in both of the other layouts."""


def write_dit(
    folder: Path,
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    layout: Layout,
    *,
    source: str,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Under our names come the weights. Files appear together."""
    theirs = canonical("dit", layout, weights)
    shards = in_shards(
        {name: weight.numel() * dtype.itemsize for name, weight in weights.items()}, shard_bytes
    )
    files = shard_names("dit" if layout == "millstream" else STEM, len(shards))
    if layout != "millstream" and len(shards) == 1:
        files = [f"{STEM}.safetensors"]
    with Staging(folder) as staging:
        for file, names in zip(files, shards, strict=True):
            held = {theirs[name]: weights[name].to("cpu", dtype).contiguous() for name in names}
            save_file(held, staging.path(file), metadata={"format": "pt"})
        if layout == "millstream":
            entry = PartEntry(files=files, source=source, layout="millstream")
            staging.path(MANIFEST).write_bytes(Manifest(model=spec.name, parts={"dit": entry}).to_bytes())
            return
        about = _diffusers_config(spec.dit) if layout == "diffusers" else _original_config(spec.dit)
        staging.path(MANIFEST).write_text(json.dumps(about, indent=2) + "\n")
        if len(files) > 1:
            where = {theirs[name]: file for file, names in zip(files, shards, strict=True) for name in names}
            whole = sum(weight.numel() * dtype.itemsize for weight in weights.values())
            index = {"metadata": {"total_size": whole}, "weight_map": where}
            staging.path(f"{STEM}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _diffusers_config(dit: DiTConfig) -> dict[str, Any]:
    return {
        "_class_name": "WanTransformer3DModel",
        "attention_head_dim": dit.head_width,
        "cross_attn_norm": True,
        "eps": dit.eps,
        "ffn_dim": dit.ffn,
        "freq_dim": dit.time_features,
        "in_channels": dit.channels,
        "num_attention_heads": dit.heads,
        "num_layers": dit.layers,
        "out_channels": dit.channels,
        "patch_size": [1, dit.patch, dit.patch],
        "qk_norm": "rms_norm_across_heads",
        "text_dim": dit.text_width,
    }


def _original_config(dit: DiTConfig) -> dict[str, Any]:
    return {
        "_class_name": "WanModel",
        "dim": dit.width,
        "eps": dit.eps,
        "ffn_dim": dit.ffn,
        "freq_dim": dit.time_features,
        "in_dim": dit.channels,
        "model_type": "t2v",
        "num_heads": dit.heads,
        "num_layers": dit.layers,
        "out_dim": dit.channels,
        "text_len": dit.text_tokens,
    }
