"""Export of what a run has learnt, as files that `serve`, `generate` and `convert` take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from millstream.core.config import ActionsConfig, BrookVAEConfig, ModelSpec
from millstream.core.errors import ConfigError
from millstream.models.adapters import save_adapters
from millstream.models.brook.bundle import BrookParts, WordEmbedder, read_card, save_bundle
from millstream.models.brook.files import bundle_path
from millstream.models.brook.vae import BrookVAE
from millstream.models.conditions.files import FILE, PREFIX, save_injectors
from millstream.models.conditions.injectors import Injectors
from millstream.models.registry import described, load_model, load_model_injectors
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


def export(
    recipe: ExportedRecipe,
    spec: ModelSpec,
    folder: Path,
    learnt: Mapping[str, Tensor],
    *,
    actions: ActionsConfig | None = None,
) -> Path:
    """Write a LoRA, a Brook, or a folder that holds a DiT in the layout that was asked for; return its path.
    What was learnt of keys is in a file beside it, or in Brook's."""
    injectors = _injectors(recipe, spec, learnt, actions)
    learnt = dit_weights(learnt)
    if injectors is not None and (recipe.lora is not None or not isinstance(spec.vae, BrookVAEConfig)):
        save_injectors(folder / FILE, injectors, torch.float32)
    if recipe.lora is not None:
        about = {"model": spec.name, "steps": str(recipe.steps), "rank": str(recipe.lora.rank)}
        save_adapters(folder / LORA, learnt, recipe.lora.alpha, about)
        return folder / LORA
    if isinstance(spec.vae, BrookVAEConfig):
        return _export_brook(recipe, spec, folder / BROOK, learnt, injectors)
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


def dit_weights(learnt: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what was learnt of the DiT itself."""
    return {name: weight for name, weight in learnt.items() if not name.startswith(PREFIX)}


def _injectors(
    recipe: ExportedRecipe, spec: ModelSpec, learnt: Mapping[str, Tensor], actions: ActionsConfig | None
) -> Injectors | None:
    """Return the model's injectors with what was learnt of them; None where nothing was. `actions` are those of
    the clips."""
    found = {name.removeprefix(PREFIX): weight for name, weight in learnt.items() if name.startswith(PREFIX)}
    if not found:
        return None
    own = described(spec, recipe.weights)
    place: dict[str, Any] = dict(device=torch.device("cpu"), dtype=torch.float32)
    if own.conditions.actions is not None:
        injectors = load_model_injectors(own, recipe.weights, **place)
    else:
        injectors = Injectors(replace(own.conditions, actions=actions), spec.dit)
    state = injectors.state_dict() | {name: weight.cpu().float() for name, weight in found.items()}
    injectors.load_state_dict(state)
    return injectors


def _export_brook(
    recipe: ExportedRecipe,
    spec: ModelSpec,
    path: Path,
    learnt: Mapping[str, Tensor],
    injectors: Injectors | None,
) -> Path:
    spec = described(spec, recipe.weights)
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
    parts = BrookParts(whole.dit, whole.vae, embedder.model, injectors or whole.injectors)
    save_bundle(path, parts, embedder.tokenizer.vocabulary, card | {"stages": stages}, torch.float16)
    return path
