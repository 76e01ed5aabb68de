"""Millstream streams video out of causal diffusion transformers while people steer it.

from millstream import Engine

engine = Engine("brook", weights="bundled")
for chunk in engine.session("a lantern over the sea").stream(chunks=4):
    print(chunk.index, chunk.frames.shape, chunk.timing.total_ms)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# Heeded if torch is not loaded yet: threads that wait sleep. Those that spin make two cores crawl as soon as anything else
# runs on them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from millstream.engine.engine import Engine

__all__ = ["Engine"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`Engine` is imported when it is first asked for: core and planner must not pull in torch."""
    if name == "Engine":
        from millstream.engine.engine import Engine

        return Engine
    raise AttributeError(f"module 'millstream' has no attribute {name!r}")
