"""Writes a DiT in any layout: ours, diffusers' or that of the original files, each with what its readers look for beside it."""

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
from millstream.models.weights.shards import SHARD_BYTES, in_shards, shard_names

STEM = "diffusion_pytorch_model"
"""What both of the other layouts call their files."""


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
    shards = in_shards({name: weight.numel() * dtype.itemsize for name, weight in weights.items()}, shard_bytes)
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
