"""What ran, as a trace of ours says of itself, as the work of its phases. What it does not say clearly is not counted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from millstream.core.config import ModelSpec, StreamConfig
from millstream.core.errors import MillstreamError
from millstream.core.presets import find_model
from millstream.planner.phase_work import Part, chunk_parts

_VALUE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_FP8 = re.compile(r"fp8 \(([\w ]*)\)")
"""As `core/speed.py` says it."""


def phase_parts(about: Mapping[str, Any]) -> dict[str, tuple[Part, ...]]:
    """By phase, of one chunk with its window full. Nothing where `about` does not say what ran, or where ranks shared it."""
    if about.get("topology") != "local":
        return {}
    try:
        spec, fast = find_model(about["model"]), str(about["fast"])
        named = _FP8.search(fast)
        return chunk_parts(
            spec,
            _stream(spec, about),
            value_bytes=_VALUE_BYTES[about["dtype"]],
            fp8=named.group(1).split() if named else (),
            low_attention="low_attention" in fast,
        )
    except (MillstreamError, KeyError, ValueError, TypeError, OverflowError):
        return {}  # anybody can write a trace: what is not understood is not counted


def _stream(spec: ModelSpec, about: Mapping[str, Any]) -> StreamConfig:
    height, _, width = str(about["size"]).partition("x")
    return replace(
        spec.stream,
        height=int(height),
        width=int(width),
        window=int(about["window"]),
        steps=tuple(float(step) for step in about["steps"]),
        frames_per_chunk=int(about.get("frames_per_chunk", spec.stream.frames_per_chunk)),
    )
