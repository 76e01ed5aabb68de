"""From a model's name and its weights to networks on a device.

Built on the meta device, then filled, so a model is never in memory twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from millstream.core.config import BrookVAEConfig, ModelSpec, TextConfig, VAEConfig
from millstream.core.errors import WeightsError
from millstream.models.brook.bundle import WordEmbedder, build, load_bundle
from millstream.models.brook.bundled import BUNDLED, FINGERPRINT, PATH
from millstream.models.brook.text import WordTokenizer
from millstream.models.brook.vae import BrookVAE
from millstream.models.dit import CausalDiT
from millstream.models.prompts import Embedder, PromptEncoder
from millstream.models.wan.text import ByteTokenizer, Tokenizer, UMT5Embedder, UMT5Tokenizer, build_umt5
from millstream.models.wan.vae import WanVAE
from millstream.models.weights.files import find_shards
from millstream.models.weights.fill import fill, fill_random
from millstream.models.weights.fingerprint import fingerprint
from millstream.models.weights.locate import ModelFiles, locate
from millstream.models.weights.lora import merge_lora

RANDOM = "random"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    """A model's parts, filled and on one device."""

    spec: ModelSpec
    dit: CausalDiT
    vae: WanVAE | BrookVAE
    text: PromptEncoder
    device: torch.device
    dtype: torch.dtype

    def fingerprint(self) -> str:
        return fingerprint({"dit": self.dit, "vae": self.vae, "text": self.text.embedder.model})


def load_model(
    spec: ModelSpec,
    weights: Sequence[str],
    *,
    device: torch.device,
    dtype: torch.dtype,
    loras: Sequence[tuple[str, float]] = (),
) -> LoadedModel:
    """`weights` are paths in any layout we know, or one word: `random`, `random:SEED`, or `bundled` for Brook."""
    for path, _ in loras:
        find_shards(Path(path))  # a wrong name is said now, not after billions of weights
    load = _load_brook if isinstance(spec.vae, BrookVAEConfig) else _load_wan
    dit, vae, embedder = load(spec, weights, device, dtype)
    for path, scale in loras:
        merge_lora(dit, Path(path), scale=scale)
    return LoadedModel(spec=spec, dit=dit, vae=vae, text=PromptEncoder(embedder), device=device, dtype=dtype)


def _load_wan(
    spec: ModelSpec, weights: Sequence[str], device: torch.device, dtype: torch.dtype
) -> tuple[CausalDiT, WanVAE, Embedder]:
    assert isinstance(spec.vae, VAEConfig)
    assert isinstance(spec.text, TextConfig)
    seed = _random_seed(weights)
    files = None if seed is not None else _complete(locate([Path(path) for path in weights]))
    with torch.device("meta"):
        dit, vae, text = CausalDiT(spec.dit), WanVAE(spec.vae), build_umt5(spec.text if files else _small_text(spec.text))
    tokenizer: Tokenizer = ByteTokenizer()
    if files is None:
        assert seed is not None
        for module in (dit, vae, text):
            fill_random(module, seed=seed, device=device, dtype=dtype)
    else:
        assert files.tokenizer is not None
        tokenizer = UMT5Tokenizer(files.tokenizer)
        fill(dit, "dit", files.dit, device=device, dtype=dtype)
        fill(vae, "vae", files.vae, device=device, dtype=dtype)
        fill(text, "text", files.text, device=device, dtype=dtype)
    return dit, vae, UMT5Embedder(text, tokenizer, tokens=spec.dit.text_tokens)


def _load_brook(
    spec: ModelSpec, weights: Sequence[str], device: torch.device, dtype: torch.dtype
) -> tuple[CausalDiT, BrookVAE, Embedder]:
    seed = _random_seed(weights)
    if seed is None:
        if len(weights) != 1:
            raise WeightsError(f"{spec.name} is one file, got {len(weights)}; give one --weights")
        if weights[0] == BUNDLED:
            return load_bundle(PATH, spec, device=device, dtype=dtype, fingerprint=FINGERPRINT)
        return load_bundle(Path(weights[0]), spec, device=device, dtype=dtype)
    parts = build(spec, num_words=0)
    for module in parts.values():
        fill_random(module, seed=seed, device=device, dtype=dtype)
    return parts["dit"], parts["vae"], WordEmbedder(parts["text"], WordTokenizer(()))


def is_random(weights: Sequence[str]) -> bool:
    return len(weights) == 1 and weights[0].partition(":")[0] == RANDOM


def _random_seed(weights: Sequence[str]) -> int | None:
    if not is_random(weights):
        return None
    _, _, seed = weights[0].partition(":")
    if seed and not seed.isdecimal():
        raise WeightsError(f"{weights[0]!r}: write random or random:SEED with a whole number")
    return int(seed or 0)


def _complete(files: ModelFiles) -> ModelFiles:
    missing = [name for name in ("dit", "vae", "text", "tokenizer") if not getattr(files, name)]
    if missing:
        raise WeightsError(
            f"no weights for {', '.join(missing)}; give more --weights or convert all into one folder (millstream convert)"
        )
    return files


def _small_text(config: TextConfig) -> TextConfig:
    """Untrained text says nothing, so it need not be billions of parameters: same width, few layers, bytes as words."""
    return replace(config, layers=min(config.layers, 2), vocabulary=384, ffn=min(config.ffn, 2 * config.width))
