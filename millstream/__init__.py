"""Millstream streams video out of causal diffusion transformers while people steer it.

from millstream import Engine

engine = Engine("brook", weights="bundled")
for chunk in engine.session("a lantern over the sea").stream(chunks=4):
    print(chunk.index, chunk.frames.shape, chunk.timing.total_ms)
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Heeded if torch is not loaded yet: threads that wait sleep. Those that spin make two cores crawl as soon as
# anything else runs on them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from millstream.core import errors
    from millstream.core.config import StreamConfig
    from millstream.core.controls import (
        Cut,
        Pause,
        Receipt,
        Resume,
        SetActions,
        SetCamera,
        SetImage,
        SetKVBias,
        SetNoiseScale,
        SetPrompt,
        SetSeed,
        SetSteps,
        SetWindow,
        Stop,
        WeightedPrompt,
    )
    from millstream.engine.engine import Engine
    from millstream.session.chunk import Chunk
    from millstream.session.session import Session

__version__ = "0.2.0"
__all__ = [
    "Chunk", "Cut", "Engine", "Pause", "Receipt", "Resume", "Session", "SetActions", "SetCamera", "SetImage",
    "SetKVBias", "SetNoiseScale", "SetPrompt", "SetSeed",
    "SetSteps", "SetWindow", "Stop", "StreamConfig", "WeightedPrompt", "errors",
]  # fmt: skip

_HOMES = {
    "Chunk": "session.chunk",
    "Engine": "engine.engine",
    "Session": "session.session",
    "StreamConfig": "core.config",
    "errors": "core",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `millstream --help` and the planner load no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'millstream' has no attribute {name!r}")
    home = import_module(f"millstream.{_HOMES.get(name, 'core.controls')}")
    return import_module("millstream.core.errors") if name == "errors" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
