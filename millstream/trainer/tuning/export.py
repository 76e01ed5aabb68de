"""What a run has learnt, as files that `serve`, `generate` and `convert` take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from millstream.core.config import BrookVAEConfig, ModelSpec
from millstream.core.files import Staging
from millstream.models.adapters import save_adapters
from millstream.models.brook.bundle import BrookParts, WordEmbedder, save_bundle
from millstream.models.brook.vae import BrookVAE
from millstream.models.registry import load_model
from millstream.models.weights.manifest import MANIFEST, Manifest, PartEntry
from millstream.trainer.tuning.recipe import TuningRecipe

LORA, BROOK = "lora.safetensors", "brook.safetensors"
SHARD_BYTES = 4 << 30


def export(recipe: TuningRecipe, spec: ModelSpec, folder: Path, learnt: Mapping[str, Tensor]) -> Path:
    """A LoRA, a Brook, or a folder that holds a DiT in our own layout."""
    if recipe.lora is not None:
        about = {"model": spec.name, "steps": str(recipe.steps), "rank": str(recipe.lora.rank)}
        save_adapters(folder / LORA, learnt, recipe.lora.alpha, about)
        return folder / LORA
    if isinstance(spec.vae, BrookVAEConfig):
        return _export_brook(recipe, spec, folder / BROOK, learnt)
    return _export_dit(spec, folder / "dit", learnt)


def _export_brook(recipe: TuningRecipe, spec: ModelSpec, path: Path, learnt: Mapping[str, Tensor]) -> Path:
    whole = load_model(spec, recipe.weights, device=torch.device("cpu"), dtype=torch.float32)
    whole.dit.load_state_dict(dict(learnt))
    embedder = whole.text.embedder
    assert isinstance(embedder, WordEmbedder), f"Brook's prompts are read by {type(embedder)}"
    assert isinstance(whole.vae, BrookVAE), f"Brook's pictures are made by {type(whole.vae)}"
    card = {"tuned_from": list(recipe.weights), "steps": recipe.steps, "batch": recipe.batch, "lr": recipe.lr}
    parts = BrookParts(whole.dit, whole.vae, embedder.model)
    save_bundle(path, parts, embedder.tokenizer.vocabulary, card, torch.float16)
    return path


def _export_dit(spec: ModelSpec, folder: Path, learnt: Mapping[str, Tensor]) -> Path:
    with Staging(folder) as staging:
        files = []
        for number, names in enumerate(_shards(learnt)):
            files.append(f"dit-{number:05d}.safetensors")
            save_file({name: learnt[name].to("cpu", torch.bfloat16).contiguous() for name in names}, staging.path(files[-1]))
        entry = PartEntry(files=files, source="millstream train", layout="millstream")
        staging.path(MANIFEST).write_bytes(Manifest(model=spec.name, parts={"dit": entry}).to_bytes())
    return folder


def _shards(learnt: Mapping[str, Tensor]) -> Iterator[Sequence[str]]:
    """Names, as many as fit into a file."""
    names, size = list[str](), 0
    for name, weight in learnt.items():
        if names and size + 2 * weight.numel() > SHARD_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += 2 * weight.numel()
    yield names
