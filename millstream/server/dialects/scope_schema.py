"""Description of a pipeline that Scope's page needs before it can load one: its name, its settings, what it
takes. Knows no HTTP.

Without it the page has an empty list and nothing to play. Only settings that do something here are named.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream import __version__
from millstream.core.config import size_unit
from millstream.server.sessions.model_card import ModelCard

BLEND_CHUNKS = 4


class PipelineSchema(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline, as its page reads it."""

    id: str
    name: str
    description: str
    config_schema: dict[str, Any]
    mode_defaults: dict[str, dict[str, Any]]
    min_dimension: int
    version: str = __version__
    docs_url: str | None = None
    estimated_vram_gb: float | None = None
    requires_models: bool = False
    """True if it must be downloaded first."""
    supports_lora: bool = False
    supports_vace: bool = False
    supports_prompts: bool = True
    supports_cache_management: bool = True
    supports_kv_cache_bias: bool = True
    supports_quantization: bool = False
    recommended_quantization_vram_threshold: float | None = None
    supported_modes: tuple[str, ...] = ("text", "video")
    default_mode: str = "text"
    default_temporal_interpolation_method: str = "linear"
    default_temporal_interpolation_steps: int = BLEND_CHUNKS
    default_spatial_interpolation_method: str = "linear"
    usage: tuple[str, ...] = ()
    modified: bool = False
    plugin_name: str | None = None
    inputs: tuple[str, ...] = ("video",)
    outputs: tuple[str, ...] = ("video",)


class PipelineSchemas(msgspec.Struct, frozen=True, kw_only=True):
    pipelines: dict[str, PipelineSchema]


def schemas_of(card: ModelCard) -> PipelineSchemas:
    """The one pipeline that there is."""
    stream = card.stream
    size = {"type": "integer", "minimum": size_unit(stream.stride)}
    properties = {
        "height": size | {"default": stream.height, "ui": _shown(1, "resolution", load=True)},
        "width": size | {"default": stream.width, "ui": _shown(1, "resolution", load=True)},
        "base_seed": {"type": "integer", "minimum": 0, "default": stream.seed, "ui": _shown(2, load=True)},
        "manage_cache": {"type": "boolean", "default": True, "ui": _shown(3, "cache")},
        "denoising_steps": {"type": "array", "default": stream.steps, "ui": _shown(4, "denoising_steps")},
        "noise_scale": {"type": "number", "default": stream.noise_scale, "ui": _shown(5, "noise")},
    }
    schema = PipelineSchema(
        id=card.name,
        name=card.name,
        description="The model of this server.",
        config_schema={"type": "object", "properties": properties},
        mode_defaults={"text": {}, "video": {"noise_scale": stream.noise_scale, "noise_controller": False}},
        min_dimension=size_unit(stream.stride),
    )
    return PipelineSchemas(pipelines={card.name: schema})


def _shown(order: int, component: str | None = None, *, load: bool = False) -> dict[str, Any]:
    """Where the page puts a setting, and whether it can be changed while the stream plays."""
    return {"order": order, "is_load_param": load} | ({} if component is None else {"component": component})
