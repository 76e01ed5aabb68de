"""Small checkpoints in every layout people have, for the tests of `models.weights`."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn

from millstream.core.config import ModelSpec
from millstream.core.presets import MODELS
from millstream.models.dit import CausalDiT
from millstream.models.wan.layouts import Layout, Part, translation
from millstream.models.wan.umt5 import UMT5Encoder
from millstream.models.wan.vae import WanVAE
from millstream.models.weights.fill import fill, fill_random
from millstream.models.weights.lora import merging

TINY = MODELS["wan-tiny"]
PARTS: tuple[Part, ...] = ("dit", "vae", "text")
Weights = dict[str, Tensor]


def meta_module(part: Part, spec: ModelSpec = TINY) -> nn.Module:
    with torch.device("meta"):
        if part == "text":
            return UMT5Encoder(spec.text)
        return CausalDiT(spec.dit) if part == "dit" else WanVAE(spec.vae)


def random_module(
    part: Part, seed: int = 0, dtype: torch.dtype = torch.float32, spec: ModelSpec = TINY
) -> nn.Module:
    module = meta_module(part, spec)
    fill_random(module, seed=seed, device="cpu", dtype=dtype)
    return module


def weights_of(module: nn.Module) -> Weights:
    return dict(module.state_dict())


def in_layout(weights: Weights, part: Part, layout: Layout) -> Weights:
    theirs = translation(part, layout, weights)
    return {theirs[name]: tensor for name, tensor in weights.items()}


def prefixed(weights: Weights, prefix: str) -> Weights:
    return {prefix + name: tensor for name, tensor in weights.items()}


def save(weights: Weights, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path)
    return path


def save_shards(weights: Weights, folder: Path, stem: str, count: int) -> list[Path]:
    """Of about equal size, numbered as published ones are."""
    total = sum(tensor.nbytes for tensor in weights.values())
    pieces: list[Weights] = [{} for _ in range(count)]
    before = 0
    for name, tensor in weights.items():
        pieces[before * count // total][name] = tensor
        before += tensor.nbytes
    return [
        save(piece, folder / f"{stem}-{i:05d}-of-{count:05d}.safetensors")
        for i, piece in enumerate(pieces, 1)
    ]


@torch.no_grad()
def merge_lora(module: nn.Module, path: Path, *, scale: float = 1.0) -> int:
    """Into a module that is there. Returns how many weights it touched."""
    weights = dict(module.named_parameters())
    touched = 0
    with merging([(path, scale)], {name: tuple(weight.shape) for name, weight in weights.items()}) as merged:
        for name, weight in weights.items():
            found = merged(name, weight)
            touched += found is not weight
            weight.copy_(found)
    return touched


def original_folder(folder: Path, spec: ModelSpec = TINY) -> Path:
    """As Wan publishes it."""
    dit, vae, text = (
        in_layout(weights_of(random_module(part, spec=spec)), part, "original") for part in PARTS
    )
    save_shards(dit, folder, "diffusion_pytorch_model", 2)
    torch.save(vae, folder / f"Wan{'2.2' if spec.stride == 16 else '2.1'}_VAE.pth")
    torch.save(text, folder / "models_t5_umt5-xxl-enc-bf16.pth")
    _tokenizer(folder / "google/umt5-xxl")
    return folder


def diffusers_folder(folder: Path, spec: ModelSpec = TINY) -> Path:
    for part, name in zip(PARTS, ("transformer", "vae", "text_encoder"), strict=True):
        weights = in_layout(weights_of(random_module(part, spec=spec)), part, "diffusers")
        save_shards(weights, folder / name, "model", 2)
        (folder / name / "config.json").write_text('{"_class_name": "Something"}')
    (folder / "model_index.json").write_text("{}")
    _tokenizer(folder / "tokenizer")
    return folder


def _tokenizer(folder: Path) -> None:
    """One that splits at spaces and knows a few words, in the file that Wan's is in."""
    words = ["<pad>", "</s>", "<unk>", "a", "boat", "on", "the", "sea", "storm"]
    model = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    model.pre_tokenizer = WhitespaceSplit()
    model.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    folder.mkdir(parents=True)
    model.save(str(folder / "tokenizer.json"))


def assert_same(found: Weights, expected: Weights) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def filled(
    part: Part, *sources: Path, dtype: torch.dtype = torch.float32, prefer_ema: bool = True
) -> nn.Module:
    module = meta_module(part)
    fill(module, part, sources, device="cpu", dtype=dtype, prefer_ema=prefer_ema)
    return module
