"""`millstream plan tune RECIPE`, and what `millstream tune` takes where its recipe says `placement =
"auto"`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import torch
from rich.console import Console

from millstream.commands.paths import profile_path
from millstream.commands.plan.train import placements_table
from millstream.core.config import GIB, ModelSpec
from millstream.core.errors import ConfigError
from millstream.core.presets import find_model
from millstream.planner.hardware import DEVICES, Fleet, named_by_driver, parse_fleet
from millstream.planner.profile import read_profile
from millstream.planner.questions.tuning import TuneAsk, tune_placements, tune_time
from millstream.train.rl.recipe import Placement, PolicyRecipe, read_policy_recipe

UNKNOWN = DEVICES["h200"]
"""Whose rates stand for those of a card that is not in the catalogue; its memory is its own."""


def tune_ask(recipe: PolicyRecipe, spec: ModelSpec, fleet: Fleet) -> TuneAsk:
    return TuneAsk(
        spec=spec,
        stream=recipe.stream(spec),
        fleet=fleet,
        prompts=recipe.prompts_per_step,
        group=recipe.group,
        chunks=recipe.chunks,
        past=sum(recipe.fork) / 2,
        tried=recipe.tried,
        learnt_steps=len(recipe.noise(spec).learnt),
        rows_at_once=recipe.rows_at_once,
        lora_rank=0 if recipe.lora is None else recipe.lora.rank,
        has_critic=recipe.learner.has_critic,
        has_average=recipe.ema > 0,
        value_bytes=recipe.rolls_in.itemsize,
        is_asynchronous=recipe.asynchronous,
    )


def run_plan_tune(path: Path, gpus: str, *, as_json: bool) -> bool:
    """Print the placements, best first; whether one fits."""
    recipe = read_policy_recipe(path)
    spec = find_model(recipe.model)
    fleet = parse_fleet(gpus, here=read_profile(profile_path()))
    ask = tune_ask(recipe, spec, fleet)
    found = tune_placements(ask)
    time = tune_time(ask)
    if as_json:
        print(json.dumps([{**asdict(each), "fits": not each.missing} for each in found], indent=2))
    else:
        console = Console()
        said = (
            f"{ask.rows} streams of {ask.chunks} chunks a step, {time.rollout:.0f} ms to make, "
            f"{time.update:.0f} to learn from"
        )
        console.print(
            f"{spec.name} by {recipe.algorithm} on {fleet.name}: {said}; pictures and rewards on top",
            highlight=False,
        )
        placements_table(found, console)
    return not found[0].missing


def choose_placement(
    recipe: PolicyRecipe, spec: ModelSpec, device: torch.device, ranks: int
) -> tuple[Placement, str]:
    """Where rollouts and learning go, and a line that says it and why."""
    asked = recipe.placement
    if ranks > 2 or (ranks == 2 and asked not in ("auto", "apart")) or (ranks == 1 and asked == "apart"):
        raise ConfigError(
            f'placement = "{asked}" on {ranks} ranks: apart has 2 (torchrun --nproc-per-node 2 -m millstream '
            "tune), others 1"
        )
    if asked != "auto":
        return asked, f"placement: {asked}, as the recipe says"
    if ranks == 2:
        return "apart", "placement: apart, since there are two ranks: one learns, one streams"
    if device.type != "cuda":
        return "together", "placement: together, since a CPU's memory is the host's"
    properties = torch.cuda.get_device_properties(device)
    card = replace(named_by_driver(properties.name) or UNKNOWN, memory_gib=properties.total_memory / GIB)
    return quickest(recipe, spec, Fleet(device=card, count=1))


def quickest(recipe: PolicyRecipe, spec: ModelSpec, fleet: Fleet) -> tuple[Placement, str]:
    """Choose the quickest placement of those that fit one device, and describe it."""
    found = {each.name: each for each in tune_placements(tune_ask(recipe, spec, fleet))}
    best = next(iter(found.values()))
    if best.missing or (recipe.asynchronous and best.name == "hybrid"):
        way = "give fewer rows_at_once or prompts_per_step, [lora], or two devices"
        raise ConfigError(f"nothing fits {fleet.device.name} ({found['together'].missing}): {way}")
    held = best.groups[0].total / GIB
    room = fleet.device.memory_gib
    why = f" ({found['together'].missing} together)" if best.name == "hybrid" else ""
    name: Placement = "hybrid" if best.name == "hybrid" else "together"
    return (
        name,
        f"placement: {name}, {held:.1f} of {room:.0f} GiB{why}, about {best.step_ms / 1e3:.2g} s a step and "
        "pictures",
    )
