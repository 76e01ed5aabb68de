"""From a model's name and its weights to networks on a device.

Built on the meta device, then filled, so a model is never in memory twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from millstream.core.config import BrookVAEConfig, ConditionsConfig, ModelSpec, TextConfig
from millstream.core.errors import WeightsError
from millstream.models.brook.bundle import WordEmbedder, build, load_bundle
from millstream.models.brook.files import BUNDLED, FINGERPRINT, PATH
from millstream.models.brook.text import WordTokenizer
from millstream.models.brook.vae import BrookVAE
from millstream.models.conditions.files import (
    conditions_in,
    empty_injectors,
    injector_file,
    is_injectors,
    load_injectors,
)
from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CausalDiT
from millstream.models.empty import empty_modules
from millstream.models.offloaded_text import OffloadedTextEncoder
from millstream.models.prompts import Embedder, PromptEncoder
from millstream.models.wan.text import ByteTokenizer, Tokenizer, UMT5Embedder, UMT5Tokenizer
from millstream.models.wan.umt5 import UMT5Encoder
from millstream.models.wan.vae import WanVAE
from millstream.models.weights.fill import Keep, Later, everything, fill, fill_random, nothing
from millstream.models.weights.fingerprint import fingerprint_of, records
from millstream.models.weights.locate import ModelFiles, locate
from millstream.models.weights.lora import Merged, merging

log = logging.getLogger(__name__)

RANDOM = "random"
RANDOM_WHOLE = "random-whole"
HOST = torch.device("cpu")
PARTS = ("dit", "injectors", "text", "vae")
"""Names of the parts that have weights."""
SIDES = ("vae", "text", "tokenizer")
"""Names of the parts around the DiT."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    """A model's parts, filled and on one device; the DiT is empty where it was not asked for."""

    spec: ModelSpec
    dit: CausalDiT
    vae: WanVAE | BrookVAE
    text: PromptEncoder
    injectors: Injectors
    device: torch.device
    dtype: torch.dtype
    as_loaded: Mapping[str, bytes] = field(default_factory=dict)
    """Records of the parts whose weights have been rearranged since: the same weights have one
    fingerprint."""

    def fingerprint(self) -> str:
        return fingerprint_of({part: self.records(part) for part in PARTS})

    def records(self, part: str) -> bytes:
        """Return the records that a part adds to the fingerprint."""
        if part in self.as_loaded:
            return self.as_loaded[part]
        if part == "text":
            embedder = self.text.embedder
            with embedder.visit() if isinstance(embedder, OffloadedTextEncoder) else nullcontext():
                return records(part, embedder.model)
        return records(part, getattr(self, part))

    def remembering(self, *parts: str) -> LoadedModel:
        """Return the model with the records of these parts kept, for callers that are about to rearrange
        their weights."""
        return replace(self, as_loaded={part: self.records(part) for part in parts})


def load_model(
    spec: ModelSpec,
    weights: Sequence[str],
    *,
    device: torch.device,
    dtype: torch.dtype,
    loras: Sequence[tuple[str, float]] = (),
    with_dit: bool = True,
    offload_text: bool = False,
) -> LoadedModel:
    """`weights` are paths in any layout we know, or one word: `random`, `random:SEED`, or `bundled` for
    Brook. Random text encoders are small, unless `random-whole` asks for all of it. With `offload_text` it
    waits in host memory and visits the device."""
    vae: WanVAE | BrookVAE
    if isinstance(spec.vae, BrookVAEConfig):
        with _merging(spec, loras) as merged:
            dit, vae, embedder = _load_brook(spec, weights, device, dtype, merged)
    else:
        files = _located(weights, ("dit", *SIDES) if with_dit else SIDES)
        with _merging(spec, loras) as merged:
            dit = _load_wan_dit(spec, weights, files, device, dtype, merged) if with_dit else _empty_dit(spec)
        vae = _load_wan_vae(spec, weights, files, device, dtype)
        text_device = HOST if offload_text and files else device  # random numbers are a device's own
        embedder = _load_umt5(spec, weights, files, text_device, dtype)
    if offload_text:
        embedder = OffloadedTextEncoder(embedder, device)
    return LoadedModel(
        spec=spec,
        dit=dit,
        vae=vae,
        text=PromptEncoder(embedder),
        injectors=load_model_injectors(spec, weights, device=device, dtype=dtype),
        device=device,
        dtype=dtype,
    )


def described(spec: ModelSpec, weights: Sequence[str]) -> ModelSpec:
    """Return the model as its files describe it: what steers it besides words is found in them, if they have
    injectors."""
    found = _with_injectors(weights)
    return spec if found is None else replace(spec, conditions=found[1])


def load_model_injectors(
    spec: ModelSpec, weights: Sequence[str], *, device: torch.device, dtype: torch.dtype
) -> Injectors:
    """Load the injectors alone: none for a model of words alone."""
    injectors = empty_injectors(spec.conditions, spec.dit)
    if injectors.is_empty:
        return injectors
    seed = _random_seed(weights)
    if seed is not None:
        fill_random(injectors, seed=seed, device=device, dtype=dtype)
        return injectors
    found = _with_injectors(weights)
    if found is None:
        raise WeightsError(
            f"no weights for the injectors of {spec.name}; give the file that has them (injectors.safetensors) "
            "with one more --weights"
        )
    return load_injectors(found[0], injectors, device=device, dtype=dtype)


def _with_injectors(weights: Sequence[str]) -> tuple[Path, ConditionsConfig] | None:
    """Find the last of these files and folders that has injectors."""
    if _random_seed(weights) is not None:
        return None
    for weight in reversed(weights):
        path = PATH if weight == BUNDLED else Path(weight)
        if (conditions := conditions_in(path)) is not None:
            return injector_file(path), conditions
    return None


def load_dit(
    spec: ModelSpec,
    weights: Sequence[str],
    *,
    device: torch.device,
    dtype: torch.dtype,
    loras: Sequence[tuple[str, float]] = (),
    keep: Keep = everything,
    later: Later = nothing,
) -> CausalDiT:
    """Load the DiT alone. `keep` says what stays of each parameter; only one at a time is in memory whole. A
    parameter that is read `later` is kept whole. Brook's are in one small file and are all read at once."""
    assert not (loras and later is not nothing), "what is read later is not merged"
    with _merging(spec, loras) as merged:

        def kept(name: str, whole: Tensor) -> Tensor | None:
            return keep(name, merged(name, whole))

        if isinstance(spec.vae, BrookVAEConfig):
            return _load_brook(spec, weights, device, dtype, kept)[0]
        return _load_wan_dit(spec, weights, _located(weights, ("dit",)), device, dtype, kept, later)


def _load_wan_dit(
    spec: ModelSpec,
    weights: Sequence[str],
    files: ModelFiles | None,
    device: torch.device,
    dtype: torch.dtype,
    keep: Keep,
    later: Later = nothing,
) -> CausalDiT:
    dit = _empty_dit(spec)
    if files is None:
        fill_random(dit, seed=_random_seed(weights) or 0, device=device, dtype=dtype, keep=keep, later=later)
    else:
        fill(dit, "dit", files.dit, device=device, dtype=dtype, keep=keep, later=later)
    return dit


def _load_wan_vae(
    spec: ModelSpec,
    weights: Sequence[str],
    files: ModelFiles | None,
    device: torch.device,
    dtype: torch.dtype,
) -> WanVAE:
    vae = empty_vae(spec)
    assert isinstance(vae, WanVAE)
    if files is None:
        fill_random(vae, seed=_random_seed(weights) or 0, device=device, dtype=dtype)
    else:
        fill(vae, "vae", files.vae, device=device, dtype=dtype)
        if not vae.config.mean:
            log.warning(
                "the latents' mean and std of %s are not known here: taken as 0 and 1, its pictures will be "
                "wrong; write them into VAEConfig.mean and std (millstream/core/presets.py)",
                spec.name,
            )
    return vae


def _load_umt5(
    spec: ModelSpec,
    weights: Sequence[str],
    files: ModelFiles | None,
    device: torch.device,
    dtype: torch.dtype,
) -> UMT5Embedder:
    assert isinstance(spec.text, TextConfig)
    with empty_modules():
        text = UMT5Encoder(spec.text.untrained if has_small_text(weights) else spec.text)
    tokenizer: Tokenizer = ByteTokenizer()
    if files is None:
        fill_random(text, seed=_random_seed(weights) or 0, device=device, dtype=dtype)
    else:
        assert files.tokenizer is not None
        tokenizer = UMT5Tokenizer(files.tokenizer)
        fill(text, "text", files.text, device=device, dtype=dtype)
    return UMT5Embedder(text, tokenizer, tokens=spec.dit.text_tokens)


def empty_vae(spec: ModelSpec) -> WanVAE | BrookVAE:
    """Build the model's VAE on the meta device: shapes, and no memory."""
    with empty_modules():
        return BrookVAE(spec.vae) if isinstance(spec.vae, BrookVAEConfig) else WanVAE(spec.vae)


def _empty_dit(spec: ModelSpec) -> CausalDiT:
    with empty_modules():
        return CausalDiT(spec.dit)


def _merging(spec: ModelSpec, loras: Sequence[tuple[str, float]]) -> AbstractContextManager[Merged]:
    """Open the LoRAs. One that is missing or does not fit raises now, not after billions of weights."""
    shapes = {name: tuple(parameter.shape) for name, parameter in _empty_dit(spec).named_parameters()}
    return merging([(Path(path), scale) for path, scale in loras], shapes)


def _load_brook(
    spec: ModelSpec, weights: Sequence[str], device: torch.device, dtype: torch.dtype, keep: Keep
) -> tuple[CausalDiT, BrookVAE, Embedder]:
    seed = _random_seed(weights)
    if seed is None:
        weights = [weight for weight in weights if weight == BUNDLED or not is_injectors(Path(weight))]
        if len(weights) != 1:
            raise WeightsError(f"{spec.name} is one file, got {len(weights)}; give one --weights")
        if weights[0] == BUNDLED:
            return load_bundle(PATH, spec, device=device, dtype=dtype, fingerprint=FINGERPRINT, keep=keep)
        return load_bundle(Path(weights[0]), spec, device=device, dtype=dtype, keep=keep)
    parts = build(spec, num_words=0)
    for part, module in parts.named():
        fill_random(module, seed=seed, device=device, dtype=dtype, keep=keep if part == "dit" else everything)
    return parts.dit, parts.vae, WordEmbedder(parts.text, WordTokenizer(()))


def has_small_text(weights: Sequence[str]) -> bool:
    """Return whether these weights have a text encoder of few layers in the place of the whole one."""
    return len(weights) == 1 and weights[0].partition(":")[0] == RANDOM


def source_of(weights: Sequence[str]) -> str:
    """Return which weights these are, as far as a word says it. Files may lie elsewhere on another machine,
    so their contents are compared instead."""
    return weights[0] if weights == (BUNDLED,) or _random_seed(weights) is not None else "files"


def _random_seed(weights: Sequence[str]) -> int | None:
    word, _, seed = weights[0].partition(":") if len(weights) == 1 else ("", "", "")
    if word not in (RANDOM, RANDOM_WHOLE):
        return None
    if seed and not seed.isdecimal():
        raise WeightsError(f"{weights[0]!r}: write {word} or {word}:SEED with a whole number")
    return int(seed or 0)


def _located(weights: Sequence[str], parts: Sequence[str]) -> ModelFiles | None:
    """Find the files of these parts; None for random weights."""
    if _random_seed(weights) is not None:
        return None
    files = locate([Path(path) for path in weights])
    missing = [name for name in parts if not getattr(files, name)]
    if missing:
        raise WeightsError(
            f"no weights for {', '.join(missing)}; give more --weights or convert all into one folder "
            "(millstream convert)"
        )
    return files
