"""Export of what a run has learnt, as files that `serve`, `generate` and `convert` take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from millstream.core.config import BrookVAEConfig, ModelSpec
from millstream.core.errors import ConfigError
from millstream.models.adapters import save_adapters
from millstream.models.brook.bundle import BrookParts, WordEmbedder, read_card, save_bundle
from millstream.models.brook.files import bundle_path
from millstream.models.brook.vae import BrookVAE
from millstream.models.registry import load_model
from millstream.models.weights.parts import Layout
from millstream.models.weights.write import write_dit
from millstream.train.finetune.recipe import LoRAPlan

LORA = "lora.safetensors"
BROOK = "brook.safetensors"
FOLDERS: dict[Layout, str] = {"millstream": "dit", "diffusers": "transformer", "original": "original"}


class ExportedRecipe(Protocol):
    """Part of a recipe that an exported file depends on, whether it teaches by clips or by rewards."""

    @property
    def weights(self) -> tuple[str, ...]: ...
    @property
    def steps(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def lora(self) -> LoRAPlan | None: ...
    @property
    def export(self) -> Layout: ...


def export(recipe: ExportedRecipe, spec: ModelSpec, folder: Path, learnt: Mapping[str, Tensor]) -> Path:
    """Write a LoRA, a Brook, or a folder that holds a DiT in the layout that was asked for; return its
    path."""
    if recipe.lora is not None:
        about = {"model": spec.name, "steps": str(recipe.steps), "rank": str(recipe.lora.rank)}
        save_adapters(folder / LORA, learnt, recipe.lora.alpha, about)
        return folder / LORA
    if isinstance(spec.vae, BrookVAEConfig):
        return _export_brook(recipe, spec, folder / BROOK, learnt)
    write_dit(folder / FOLDERS[recipe.export], spec, learnt, recipe.export, source="millstream train")
    return folder / FOLDERS[recipe.export]


def check_export(recipe: ExportedRecipe, spec: ModelSpec) -> None:
    """Check, before anything is learnt, that the layout exists for such a model."""
    one_way = (
        "a LoRA" if recipe.lora is not None else spec.name if isinstance(spec.vae, BrookVAEConfig) else None
    )
    if one_way is not None and recipe.export != "millstream":
        raise ConfigError(
            f"{one_way} is one file that has no other layout; leave export = {recipe.export!r} out"
        )


def _export_brook(recipe: ExportedRecipe, spec: ModelSpec, path: Path, learnt: Mapping[str, Tensor]) -> Path:
    whole = load_model(spec, recipe.weights, device=torch.device("cpu"), dtype=torch.float32)
    whole.dit.load_state_dict(dict(learnt))
    embedder = whole.text.embedder
    assert isinstance(embedder, WordEmbedder), f"Brook's prompts are read by {type(embedder)}"
    assert isinstance(whole.vae, BrookVAE), f"Brook's pictures are made by {type(whole.vae)}"
    base = bundle_path(recipe.weights[0])
    card = read_card(base) if base.is_file() else {}  # random weights have none
    stages = [
        *card.get("stages", ()),
        {"name": "tuned", "steps": recipe.steps, "batch": recipe.batch, "lr": recipe.lr},
    ]
    parts = BrookParts(whole.dit, whole.vae, embedder.model, whole.injectors)
    save_bundle(path, parts, embedder.tokenizer.vocabulary, card | {"stages": stages}, torch.float16)
    return path
