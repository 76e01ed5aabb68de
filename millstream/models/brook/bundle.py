"""Brook in one file: DiT, VAE and text encoder as safetensors, its words in the header.

dit.*, vae.*, text.*, injectors.*    and metadata: format, vocabulary (JSON), card (JSON: how it was trained),
conditions (JSON: what its injectors take, where it has any)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from millstream.core.config import BrookTextConfig, BrookVAEConfig, ModelSpec
from millstream.core.errors import WeightsError
from millstream.core.files import Staging, file_digest
from millstream.models.brook.text import BrookText, WordTokenizer, padded
from millstream.models.brook.vae import BrookVAE
from millstream.models.brook.word_table import word_table
from millstream.models.conditions.files import header_of
from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CausalDiT
from millstream.models.empty import empty_modules
from millstream.models.weights.fill import Filling, Keep, everything
from millstream.models.weights.same_bytes import save_alike

FORMAT = "millstream-brook-1"
MAX_READINGS = 64
"""Most texts whose reading is remembered: each chunk of a session asks for its prompts'."""


class BrookParts(NamedTuple):
    """The networks, under the names they have in the file."""

    dit: CausalDiT
    vae: BrookVAE
    text: BrookText
    injectors: Injectors | None = None

    def named(self) -> Iterator[tuple[str, nn.Module]]:
        return ((name, part) for name, part in zip(self._fields, self, strict=True) if part is not None)


class WordEmbedder:
    """Embedder of one text at a time, of the words in it that the model was taught."""

    def __init__(self, model: BrookText, tokenizer: WordTokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.read = lru_cache(MAX_READINGS)(tokenizer.read)

    def __call__(self, text: str) -> Tensor:
        ids_BS = padded(self.tokenizer, [text], self.model.config.tokens)
        return self.model(ids_BS.to(self.model.position.device))


def save_bundle(
    path: Path, parts: BrookParts, vocabulary: tuple[str, ...], card: dict[str, object], dtype: torch.dtype
) -> None:
    """Write Brook as one file, which appears by rename."""
    tensors = {
        f"{part}.{name}": tensor.detach().to("cpu", dtype).contiguous()
        for part, module in parts.named()
        for name, tensor in module.state_dict().items()
    }
    metadata = {"format": FORMAT, "vocabulary": json.dumps(vocabulary), "card": json.dumps(card)}
    if parts.injectors is not None:
        metadata |= header_of(parts.injectors)
    with Staging(path.parent) as staging:
        save_alike(tensors, staging.path(path.name), metadata)


def read_card(path: Path) -> dict[str, Any]:
    """Return the file's card: how the model was trained."""
    with safe_open(path, framework="pt") as file:
        card: dict[str, Any] = json.loads(file.metadata()["card"])
    return card


def load_bundle(
    path: Path,
    spec: ModelSpec,
    *,
    device: torch.device,
    dtype: torch.dtype,
    fingerprint: str | None = None,
    keep: Keep = everything,
) -> tuple[CausalDiT, BrookVAE, WordEmbedder]:
    """Load Brook from its file, but for its injectors. With a `fingerprint`, the file must be that very one.
    `keep` says what stays of each parameter of the DiT."""
    try:
        if fingerprint is not None and (found := file_digest(path)) != fingerprint:
            raise WeightsError(
                f"{path} is damaged: its fingerprint is {found}, expected {fingerprint}; install millstream again"
            )
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise WeightsError(
                    f"{path} is not a Brook model ({metadata.get('format')}); expected {FORMAT}"
                )
            vocabulary = tuple(json.loads(metadata["vocabulary"]))
            parts = build(spec, len(vocabulary))
            for part, module in parts._replace(injectors=None).named():
                kept = keep if part == "dit" else everything
                _fill(part, Filling(module, device=device, dtype=dtype, keep=kept), file, path)
    except FileNotFoundError:
        raise WeightsError(f"{path} is not there; check the path, or name bundled") from None
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        fix = (
            "install millstream again"
            if fingerprint is not None
            else "name a file that millstream train wrote, or bundled"
        )
        raise WeightsError(f"{path} cannot be read ({type(error).__name__}); {fix}") from None
    nn.utils.convert_conv2d_weight_memory_format(parts.vae, torch.channels_last)  # what CPU convolutions like
    return parts.dit, parts.vae, WordEmbedder(parts.text, WordTokenizer(vocabulary, word_table))


def build(spec: ModelSpec, num_words: int) -> BrookParts:
    """Build the networks on the meta device."""
    assert isinstance(spec.vae, BrookVAEConfig)
    assert isinstance(spec.text, BrookTextConfig)
    with empty_modules():
        text = BrookText(replace(spec.text, vocabulary=num_words))
        injectors = Injectors(spec.conditions, spec.dit)
        return BrookParts(CausalDiT(spec.dit), BrookVAE(spec.vae), text, injectors)


def _fill(part: str, filling: Filling, file: safe_open, path: Path) -> None:
    stored = {key.removeprefix(f"{part}."): key for key in file.keys() if key.startswith(f"{part}.")}  # noqa: SIM118
    found = {name: tuple(file.get_slice(key).get_shape()) for name, key in stored.items()}
    wanted = filling.shapes
    if found != wanted:
        wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        raise WeightsError(
            f"{path} does not fit this {part}: {', '.join(wrong[:3])}; it is of another version"
        )
    for name in wanted:
        filling.give(name, file.get_tensor(stored[name]))
    filling.done()
