"""Model that a name, a folder or a list of shapes stands for, from its configuration alone: no weights are
read.

Folders: diffusers (`transformer/config.json` beside `vae/` and `text_encoder/`), original (`config.json` with
`dim`), converted ones (which name a preset). Custom shapes: `layers=30,width=1536,heads=12,ffn=8960`.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from millstream.core.config import DiTConfig, ModelSpec, StreamConfig, TextConfig, VAEConfig
from millstream.core.errors import ConfigError
from millstream.core.presets import MODELS, WAN_VAE, find_model
from millstream.planner.language.decoders import is_decoder

MAX_CONFIG_BYTES = 1 << 20
_LIMITS = {"layers": 1024, "width": 131072, "heads": 1024, "ffn": 1 << 20}


def resolve_model(text: str) -> ModelSpec:
    """A registered name, a checkpoint's folder, or shapes."""
    if text in MODELS:
        return MODELS[text]
    if is_decoder(text):
        raise ConfigError(
            f"{text!r} is a language model: plan explain and plan train --student know it, this does not"
        )
    if "=" in text:
        return _from_shapes(text)
    folder = Path(text)
    return _from_folder(folder) if folder.is_dir() else find_model(text)


def _from_shapes(text: str) -> ModelSpec:
    known = [field.name for field in fields(DiTConfig) if field.type == "int"]
    values: dict[str, Any] = {}
    for pair in text.split(","):
        name, _, value = pair.strip().partition("=")
        if name not in known or not value.isdecimal():
            raise ConfigError(
                f"{pair.strip()!r}: a custom model is layers=30,width=1536,heads=12,ffn=8960; also "
                f"{', '.join(known[4:])}"
            )
        values[name] = int(value)
    missing = [name for name in known[:4] if name not in values]
    if missing:
        raise ConfigError(f"a custom model also needs {', '.join(missing)}")
    return ModelSpec(name="custom", dit=_dit("--model", **values), vae=WAN_VAE)


def _from_folder(folder: Path) -> ModelSpec:
    inner = folder / "transformer" / "config.json"
    path = inner if inner.is_file() else folder / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"{folder} has neither transformer/config.json nor config.json; give a checkpoint's folder or a "
            "name"
        )
    raw = _read(path)
    if raw.get("format") == "millstream":
        return find_model(str(raw.get("model")))
    try:
        dit = _diffusers_dit(path, raw) if "attention_head_dim" in raw else _original_dit(path, raw)
        like = _preset_like(dit)
        vae = _vae(folder) or (WAN_VAE if like is None else like.vae)
        stream = StreamConfig() if like is None else like.stream
        return ModelSpec(
            name=folder.resolve().name,
            dit=dit,
            vae=vae,
            text=_text(folder) or TextConfig(),
            stream=replace(stream, stride=vae.spatial_stride),
        )
    except KeyError as missing:
        raise ConfigError(f"{path} does not say {missing}; is it a Wan model's configuration?") from None
    except (TypeError, ValueError):
        raise ConfigError(f"{path} holds something else than numbers where a shape is expected") from None


def _original_dit(path: Path, raw: dict[str, Any]) -> DiTConfig:
    return _dit(
        path,
        layers=raw["num_layers"],
        width=raw["dim"],
        heads=raw["num_heads"],
        ffn=raw["ffn_dim"],
        channels=raw.get("out_dim", 16),
        text_tokens=raw.get("text_len", 512),
        time_features=raw.get("freq_dim", 256),
    )


def _diffusers_dit(path: Path, raw: dict[str, Any]) -> DiTConfig:
    return _dit(
        path,
        layers=raw["num_layers"],
        width=raw["num_attention_heads"] * raw["attention_head_dim"],
        heads=raw["num_attention_heads"],
        ffn=raw["ffn_dim"],
        channels=raw.get("out_channels", 16),
        text_width=raw.get("text_dim", 4096),
        time_features=raw.get("freq_dim", 256),
    )


def _dit(where: object, **shapes: Any) -> DiTConfig:
    for name, most in _LIMITS.items():
        if not 1 <= int(shapes[name]) <= most:
            raise ConfigError(f"{where}: {name} must be 1 to {most}, got {shapes[name]}")
    return DiTConfig(**{name: int(value) for name, value in shapes.items()})


def _vae(folder: Path) -> VAEConfig | None:
    path = folder / "vae" / "config.json"
    if not path.is_file():
        return None
    raw = _read(path)
    return VAEConfig(
        width=int(raw["base_dim"]),
        decoder_width=int(raw.get("decoder_base_dim") or 0),
        multipliers=tuple(map(int, raw["dim_mult"])),
        res_blocks=int(raw["num_res_blocks"]),
        downsample_time=tuple(map(bool, raw["temperal_downsample"])),
        channels=int(raw["z_dim"]),
        pixel_patch=int(raw.get("patch_size") or 1),
        residual=bool(raw.get("is_residual", False)),
    )


def _text(folder: Path) -> TextConfig | None:
    path = folder / "text_encoder" / "config.json"
    if not path.is_file():
        return None
    raw = _read(path)
    return TextConfig(
        width=int(raw["d_model"]),
        layers=int(raw["num_layers"]),
        heads=int(raw["num_heads"]),
        head_width=int(raw["d_kv"]),
        ffn=int(raw["d_ff"]),
        vocabulary=int(raw["vocab_size"]),
    )


def _preset_like(dit: DiTConfig) -> ModelSpec | None:
    """A preset of the same shape knows how it streams and what decodes it; others start from the default."""
    for spec in MODELS.values():
        shape = spec.dit.layers, spec.dit.width, spec.dit.channels
        if isinstance(spec.vae, VAEConfig) and shape == (dit.layers, dit.width, dit.channels):
            return spec
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{path} is larger than a configuration can be")
        raw = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} is not a configuration: expected an object")
    return raw
