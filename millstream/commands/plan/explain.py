"""`millstream plan explain`: one number, its formula, and the formula filled in. Loads no torch."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import cast

from millstream.commands.paths import profile_path
from millstream.commands.plan.options import ExplainOptions
from millstream.core.errors import ConfigError
from millstream.planner.bubbles import Schedule
from millstream.planner.explain import Explanation, explain, explain_adam, explain_bubble, explain_vae
from millstream.planner.hardware import Fleet, Link, parse_fleet
from millstream.planner.language.decoders import find_decoder, is_decoder
from millstream.planner.language.explain import explain_language, explain_speculation, explain_sum
from millstream.planner.language.serving import ServingAsk
from millstream.planner.profile import read_profile
from millstream.planner.search import search
from millstream.planner.training import PRECISIONS, Sharding


def run_plan_explain(options: ExplainOptions) -> None:
    found = explain_number(options)
    if options.as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    print(f"{found.name} = {found.formula}")
    print(f"{' ' * len(found.name)} = {found.filled}")
    print(f"{' ' * len(found.name)} = {found.value:.4g} {found.unit}")
    print(found.why)


def explain_number(options: ExplainOptions) -> Explanation:
    what = options.what
    if what == "bubble":
        schedule = cast(Schedule, options.pipeline)
        return explain_bubble(schedule, options.stages, options.micro_batches, options.chunks)
    if what == "adam":
        return _adam(options)
    if what == "all-reduce" and options.num_bytes is not None:
        return _sum(options, options.num_bytes)
    if is_decoder(options.model):
        return _language(options)
    best = search(options.ask(), only=options.only).best
    if what == "vae":
        return explain_vae(best, options.frames or best.ask.work.stream.frames_per_chunk, options.tile)
    return explain(what, best)


def _adam(options: ExplainOptions) -> Explanation:
    parameters = find_decoder(options.model).parameters if is_decoder(options.model) else options.parameters
    if not 1 <= parameters <= 1e15:
        raise ConfigError(f"--parameters must be 1 to 1e15, got {parameters:g}")
    if options.state not in PRECISIONS:
        raise ConfigError(f"--state must be {', '.join(PRECISIONS)}, got {options.state!r}")
    weight, gradient, optimizer = PRECISIONS[options.state]
    sharding = Sharding(
        zero=options.zero,
        shards=options.shards,
        weight_bytes=weight,
        gradient_bytes=gradient,
        optimizer_bytes=optimizer,
    )
    return explain_adam(parameters, sharding)


def _sum(options: ExplainOptions, num_bytes: float) -> Explanation:
    """Sum over the link that so many devices have, unless its latency or bandwidth is given."""
    link = _fleet(options).link_between(options.shards)
    if options.latency_us is not None or options.bandwidth_gb_s is not None:
        alpha = options.latency_us
        beta = options.bandwidth_gb_s
        link = Link(
            name="a link as described",
            alpha_us=link.alpha_us if alpha is None else alpha,
            beta_gb_s=link.beta_gb_s if beta is None else beta,
        )
    return explain_sum(num_bytes, options.shards, link)


def _language(options: ExplainOptions) -> Explanation:
    ask = ServingAsk(
        decoder=find_decoder(options.model),
        fleet=_fleet(options),
        context=options.context,
        batch=options.batch,
        weights=options.weights,
    )
    if options.what == "speculation":
        return explain_speculation(ask, find_decoder(options.draft), options.accepted, options.ahead)
    return explain_language(options.what, ask)


def _fleet(options: ExplainOptions) -> Fleet:
    return parse_fleet(options.gpus, here=read_profile(profile_path()))
