"""Work of each phase, from what a trace of ours records about its run. What it does not record clearly is not
counted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from millstream.core.chunk_work import Part, chunk_parts
from millstream.core.config import ModelSpec, StreamConfig
from millstream.core.errors import MillstreamError
from millstream.core.presets import find_model

_VALUE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_FP8 = re.compile(r"fp8 \(([\w ]*)\)")
"""Description of 8-bit layers as written by `core/speed.py`."""


def phase_parts(about: Mapping[str, Any]) -> dict[str, tuple[Part, ...]]:
    """Return the parts of each phase, for one chunk with its window full. Empty where `about` does not say
    what ran, or where ranks shared it."""
    if about.get("topology") != "local":
        return {}
    try:
        spec = find_model(about["model"])
        fast = str(about["fast"])
        named = _FP8.search(fast)
        return chunk_parts(
            spec,
            _stream(spec, about),
            value_bytes=_VALUE_BYTES[about["dtype"]],
            fp8=named.group(1).split() if named else (),
            low_attention="low_attention" in fast,
        )
    except (MillstreamError, KeyError, ValueError, TypeError, OverflowError):
        return {}  # a trace may come from any program: what is not understood is not counted


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
