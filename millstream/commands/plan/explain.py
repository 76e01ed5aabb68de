"""`millstream plan explain`: one number, its formula, and the formula filled in. Loads no torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import cast

from millstream.commands.plan.run import PlanRequest, profile_path
from millstream.core.errors import ConfigError
from millstream.core.topology import Topology
from millstream.planner.bubbles import Schedule
from millstream.planner.cards.weights import NATIVE
from millstream.planner.explain import Explanation, explain, explain_adam, explain_bubble, explain_vae
from millstream.planner.hardware import Fleet, Link, parse_fleet
from millstream.planner.language.decoders import find_decoder, is_decoder
from millstream.planner.language.explain import explain_language, explain_speculation, explain_sum
from millstream.planner.language.serving import ServingAsk
from millstream.planner.profile import read_profile
from millstream.planner.search import search
from millstream.planner.training import PRECISIONS, Sharding


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumptions:
    """What `bubble`, `adam`, `vae` and language models are asked about; plans need none of it."""

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
    state: str = "mixed"
    context: int = 4096
    batch: int = 1
    weights: str = NATIVE
    num_bytes: float | None = None
    latency_us: float | None = None
    bandwidth_gb_s: float | None = None
    draft: str = "7b"
    accepted: float = 0.8
    ahead: int = 4


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
        return _adam(request.model, assumptions)
    if what == "all-reduce" and assumptions.num_bytes is not None:
        return _sum(request, assumptions, assumptions.num_bytes)
    if is_decoder(request.model):
        return _language(what, request, assumptions)
    only = Topology.parse(request.topology) if request.topology else None
    best = search(request.ask(), only=only).best
    if what == "vae":
        return explain_vae(best, assumptions.frames or best.ask.work.stream.frames_per_chunk, assumptions.tile)
    return explain(what, best)


def _adam(model: str, a: Assumptions) -> Explanation:
    parameters = find_decoder(model).parameters if is_decoder(model) else a.parameters
    if not 1 <= parameters <= 1e15:
        raise ConfigError(f"--parameters must be 1 to 1e15, got {parameters:g}")
    if a.state not in PRECISIONS:
        raise ConfigError(f"--state must be {', '.join(PRECISIONS)}, got {a.state!r}")
    weight, gradient, optimizer = PRECISIONS[a.state]
    sharding = Sharding(zero=a.zero, shards=a.shards, weight_bytes=weight, gradient_bytes=gradient, optimizer_bytes=optimizer)
    return explain_adam(parameters, sharding)


def _sum(request: PlanRequest, a: Assumptions, num_bytes: float) -> Explanation:
    """By the link that so many devices have, unless its latency or bandwidth is said."""
    link = _fleet(request).link_between(a.shards)
    if a.latency_us is not None or a.bandwidth_gb_s is not None:
        alpha, beta = a.latency_us, a.bandwidth_gb_s
        link = Link(
            name="a link as described",
            alpha_us=link.alpha_us if alpha is None else alpha,
            beta_gb_s=link.beta_gb_s if beta is None else beta,
        )
    return explain_sum(num_bytes, a.shards, link)


def _language(what: str, request: PlanRequest, a: Assumptions) -> Explanation:
    ask = ServingAsk(
        decoder=find_decoder(request.model), fleet=_fleet(request), context=a.context, batch=a.batch, weights=a.weights
    )
    if what == "speculation":
        return explain_speculation(ask, find_decoder(a.draft), a.accepted, a.ahead)
    return explain_language(what, ask)


def _fleet(request: PlanRequest) -> Fleet:
    return parse_fleet(request.gpus, here=read_profile(profile_path()))
