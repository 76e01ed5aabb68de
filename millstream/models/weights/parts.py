"""Which part of a model a set of names is, in which layout, and which preset its shapes are.

Names and shapes only. Heads leave no trace in shapes: a preset supplies them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from millstream.core.config import ModelSpec, TextConfig, VAEConfig
from millstream.core.errors import WeightsError
from millstream.core.presets import MODELS
from millstream.models.dit import CausalDiT
from millstream.models.empty import empty_modules
from millstream.models.wan import layouts
from millstream.models.wan.layouts import Part
from millstream.models.wan.umt5 import UMT5Encoder
from millstream.models.wan.vae import WanVAE
from millstream.models.weights.files import Shape

Layout = layouts.Layout | Literal["millstream"]

_MARKS: dict[tuple[Part, Layout], re.Pattern[str]] = {
    ("dit", "millstream"): re.compile(r"blocks\.\d+\.(cross_norm|ffn\.up|ffn\.down)\.|patch_in\."),
    ("dit", "original"): re.compile(r"blocks\.\d+\.(norm3|ffn\.0|ffn\.2)\.|(text|time)_embedding\.\d"),
    ("dit", "diffusers"): re.compile(r"blocks\.\d+\.(attn[12]|ffn\.net)\.|condition_embedder\."),
    ("vae", "millstream"): re.compile(r"encoder\.down\.\d|decoder\.up\.\d|(un)?quant\."),
    ("vae", "original"): re.compile(r"encoder\.downsamples\.\d|decoder\.upsamples\.\d"),
    ("vae", "diffusers"): re.compile(r"encoder\.down_blocks\.\d|decoder\.up_blocks\.\d"),
    ("text", "original"): re.compile(r"blocks\.\d+\.(attn|pos_embedding|ffn\.gate)\."),
    ("text", "diffusers"): re.compile(r"encoder\.block\.\d+\.layer\."),  # ours too: the names are the same
}


@dataclass(frozen=True, slots=True)
class DiTSize:
    """As much of a DiTConfig as shapes tell."""

    layers: int
    width: int
    ffn: int
    channels_in: int
    patch: int
    text_width: int
    time_features: int

    def __str__(self) -> str:
        return f"{self.layers} layers, width {self.width}, ffn {self.ffn}, {self.channels_in} latent channels"


def recognise(names: Iterable[str]) -> tuple[Part, Layout] | None:
    """The part and layout most names point to, or None. A LoRA is none, though its layers go by the same
    names."""
    names = list(names)
    if _is_lora(names):
        return None
    votes = {key: sum(1 for name in names if mark.match(name)) for key, mark in _MARKS.items()}
    winner = max(votes, key=lambda key: votes[key])
    return winner if votes[winner] else None


def identify(names: Iterable[str], *, where: str = "the checkpoint") -> tuple[Part, Layout]:
    names = list(names)
    if found := recognise(names):
        return found
    if _is_lora(names):
        raise WeightsError(f"{where} is a LoRA, not a model; give the model and merge this into it")
    first = ", ".join(names[:3]) or "none"
    raise WeightsError(
        f"{where} is no Wan DiT, VAE or text encoder in a known layout; its first names are {first}"
    )


def _is_lora(names: Iterable[str]) -> bool:
    return any("lora_" in name for name in names)


def canonical(part: Part, layout: Layout, ours: Iterable[str]) -> dict[str, str]:
    """Their name for each of ours."""
    return (
        {name: name for name in ours} if layout == "millstream" else layouts.translation(part, layout, ours)
    )


def infer_dit(shapes: Mapping[str, Shape]) -> DiTSize | None:
    """Sizes of the DiT under any layout's names; None where a tensor that tells one is absent."""
    found = recognise(shapes)
    if found is None or found[0] != "dit":
        return None
    ours = ("patch_in.weight", "blocks.0.ffn.up.weight", "text_in.up.weight", "time_in.up.weight")
    told = [shapes.get(theirs) for theirs in canonical("dit", found[1], ours).values()]
    match told:
        case [(width, channels, _, patch, _), (ffn, _), (_, text_width), (_, time_features)]:
            layers = 1 + max(
                int(match[1]) for name in shapes if (match := re.match(r"blocks\.(\d+)\.", name))
            )
            return DiTSize(layers, width, ffn, channels, patch, text_width, time_features)
    return None


def match_preset(shapes: Mapping[str, Shape]) -> ModelSpec | None:
    """The registered model whose DiT has these shapes."""
    size = infer_dit(shapes)
    wan = [spec for spec in MODELS.values() if isinstance(spec.vae, VAEConfig)]
    return next(
        (spec for spec in wan if size == DiTSize(*(getattr(spec.dit, field) for field in DiTSize.__slots__))),
        None,
    )


def expected_shapes(part: Part, spec: ModelSpec) -> dict[str, Shape]:
    """Every tensor of a part under our names."""
    if not (isinstance(spec.vae, VAEConfig) and isinstance(spec.text, TextConfig)):
        raise WeightsError(f"{spec.name} comes as one file and has no other layout; use it as it is")
    with empty_modules():
        module = (
            CausalDiT(spec.dit)
            if part == "dit"
            else WanVAE(spec.vae)
            if part == "vae"
            else UMT5Encoder(spec.text)
        )
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
