"""`millstream plan explain`: one number, its formula, and the formula filled in. Loads no torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import cast

from millstream.commands.plan.run import PlanRequest
from millstream.core.errors import ConfigError
from millstream.core.topology import Topology
from millstream.planner.bubbles import Schedule
from millstream.planner.explain import Explanation, explain, explain_adam, explain_bubble, explain_vae
from millstream.planner.search import search
from millstream.planner.training import Sharding


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumptions:
    """What `bubble`, `adam` and `vae` are asked about; plans need none of it."""

    pipeline: str = "1f1b"
    stages: int = 4
    micro_batches: int = 8
    chunks: int = 1
    parameters: float = 30e9
    zero: int = 3
    shards: int = 64
    frames: int | None = None
    """Latent frames that are decoded at once; a chunk's if nothing is said."""
    tile: int | None = None
    """Pixels, or the whole picture."""


def run_plan_explain(what: str, request: PlanRequest, assumptions: Assumptions, *, as_json: bool) -> None:
    found = explain_number(what, request, assumptions)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    print(f"{found.name} = {found.formula}")
    print(f"{' ' * len(found.name)} = {found.filled}")
    print(f"{' ' * len(found.name)} = {found.value:.4g} {found.unit}")
    print(found.why)


def explain_number(what: str, request: PlanRequest, assumptions: Assumptions) -> Explanation:
    if what == "bubble":
        a = assumptions
        return explain_bubble(cast(Schedule, a.pipeline), a.stages, a.micro_batches, a.chunks)
    if what == "adam":
        if not 1 <= assumptions.parameters <= 1e15:
            raise ConfigError(f"--parameters must be 1 to 1e15, got {assumptions.parameters:g}")
        return explain_adam(assumptions.parameters, Sharding(zero=assumptions.zero, shards=assumptions.shards))
    only = Topology.parse(request.topology) if request.topology else None
    best = search(request.ask(), only=only).best
    if what == "vae":
        return explain_vae(best, assumptions.frames or best.ask.work.stream.frames_per_chunk, assumptions.tile)
    return explain(what, best)
