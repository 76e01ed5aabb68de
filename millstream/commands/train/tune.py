"""`millstream train RECIPE`: a model that exists learns from clips, on one process or on every rank of
torchrun.

    torchrun --nproc-per-node 4 -m millstream train RECIPE

A run's folder can be read years later: the recipe, what it ran on, the curve, checkpoints, and what was
learnt.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from millstream.commands.report import describe
from millstream.commands.train.expected_step import DEVICE, expected_step
from millstream.commands.train.role_memory import role_memory
from millstream.commands.train.run_folder import (
    RUN,
    keep_record,
    refuse_other_recipe,
    say_stopping,
    writing_to,
)
from millstream.commands.train.shown import ShownRun
from millstream.core.config import ModelSpec
from millstream.core.errors import ConfigError, MeshLost
from millstream.core.presets import find_model
from millstream.engine.device_choice import choose_device
from millstream.parallel.collectives import GLOO, NCCL
from millstream.planner.bubbles import TRAINED, bubble, held_micro_batches
from millstream.planner.memory import dit_parameters
from millstream.planner.training import lora_parameters
from millstream.train.export import check_export, export
from millstream.train.finetune.dataset import CARD, ClipSet, read_card
from millstream.train.finetune.recipe import TuningRecipe, read_recipe
from millstream.train.finetune.run import TuningRun, check_card
from millstream.train.finetune.translate import read_deepspeed
from millstream.train.interrupt import Interrupt, Stopped
from millstream.video.writer import check_parent_writable

GPUS_A_MACHINE = 8


def run_tuning(
    path: Path, *, out: Path | None, device: str, dry_run: bool, deepspeed: Path | None = None
) -> Path | None:
    """The file that was written; None if the run was stopped before its end, or by a rank that writes
    nothing."""
    recipe = read_recipe(path)
    spec = find_model(recipe.model)
    recipe.check(spec.dit)
    check_export(recipe, spec)
    config = None if deepspeed is None else read_deepspeed(deepspeed)
    folder = out or path.with_suffix("")
    check_parent_writable(folder / RUN)
    if dry_run:
        clips_there = (path.parent / recipe.data / CARD).exists()
        if clips_there:
            check_card(recipe, spec, read_card(path.parent / recipe.data))
        Console().print(_table(recipe, spec, path))
        if not clips_there:
            said = f"there are no clips in {recipe.data} yet; millstream train data prepare makes them"
            Console().print(said, soft_wrap=True, highlight=False)
        return None
    recipe.check_ranks(int(os.environ.get("WORLD_SIZE", "1")))
    clips = ClipSet(path.parent / recipe.data)
    with writing_to(folder), process_group(device) as here, Interrupt(say_stopping) as interrupt:
        refuse_other_recipe(folder, path, TuningRecipe.RENAMED)
        _refuse_other_clips(folder, clips, recipe)
        run = TuningRun(recipe, spec, clips, folder, here, deepspeed=config)
        if run.is_first:
            keep_record(folder, path, _record(run, clips))
        with ShownRun(run) if run.is_first else nullcontext() as shown:
            seen = (_nothing, _nothing) if shown is None else (shown.add, shown.add_streams)
            is_whole = run.train(seen[0], lambda: interrupt.asked, seen[1])
        if not is_whole:
            raise Stopped
        learnt = run.learnt()
        if not run.is_first:
            return None
        return export(recipe, spec, folder, learnt, actions=clips.card.actions)


def _nothing(*_: object) -> None:
    """Show nothing, on the ranks after the first."""


@contextmanager
def process_group(device: str) -> Iterator[torch.device]:
    """Yield the device that this rank works on. Under torchrun the ranks form a process group; a process by
    itself needs none."""
    local_rank = os.environ.get("LOCAL_RANK")
    chosen = choose_device(device)
    if local_rank is None:
        yield chosen
        return
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(local_rank))
        torch.cuda.set_device(chosen)
    store, rank, ranks = next(rendezvous("env://"))
    life = os.environ.get(
        "TORCHELASTIC_RESTART_COUNT", "0"
    )  # one store may serve all lives, with the dead's addresses in it
    backend = NCCL if chosen.type == "cuda" else GLOO
    known = PrefixStore(f"life {life}", store)
    dist.init_process_group(backend, store=known, rank=rank, world_size=ranks)
    try:
        yield chosen
    except (RuntimeError, dist.DistError) as error:
        if not _PEER_IS_LOST.search(str(error)):
            raise
        raise MeshLost(
            "a rank was lost; under torchrun --max-restarts 3 all start again, from the last checkpoint"
        ) from None
    finally:
        dist.destroy_process_group()


_PEER_IS_LOST = re.compile(
    r"gloo.*(connection|timed out)|connection (reset|closed|refused)|NCCL", re.IGNORECASE
)


def _refuse_other_clips(folder: Path, clips: ClipSet, recipe: TuningRecipe) -> None:
    if (folder / RUN).exists():
        begun = json.loads((folder / RUN).read_text())["configuration"]
        if begun.get("clips_digest", clips.digest) != clips.digest:
            raise ConfigError(
                f"{folder} was begun on other clips than {recipe.data} holds; put them back, or choose "
                "another --out"
            )


def _record(run: TuningRun, clips: ClipSet) -> dict[str, Any]:
    roles = {role: asdict(run.recipe.plan_of(role)) for role in run.recipe.roles}
    said = {"method": run.recipe.method, "placement": run.recipe.placement, "roles": roles}
    asked = {
        **said,
        "parallel": asdict(run.recipe.plan),
        "dataset": msgspec.to_builtins(clips.card),
        "clips": len(clips),
        "clips_digest": clips.digest,
    }
    return describe("train", asked, {"learning": run.learning})


def _table(recipe: TuningRecipe, spec: ModelSpec, path: Path) -> Table:
    """Tabulate what would be trained, and what each role holds."""
    whole = dit_parameters(spec.dit)
    learns = whole if recipe.lora is None else lora_parameters(spec.dit, recipe.lora.rank)
    plan = recipe.plan
    table = Table("what", "value", title=f"{recipe.model}: {recipe.steps} steps of {recipe.batch} clips")
    table.add_row("learns", f"{learns / 1e6:.2f}M of {whole / 1e6:.1f}M parameters")
    if recipe.method != "flow":
        table.add_row(
            "method", f"{recipe.method}, steps at {', '.join(f'{level:.0f}' for level in recipe.levels)}"
        )
    table.add_row(
        "optimiser",
        f"{recipe.optimiser}, {recipe.state_bits} bits" if recipe.state_bits != 32 else recipe.optimiser,
    )
    roles = role_memory(recipe, spec)
    for held in roles:
        table.add_row(
            f"MiB a rank, {held.role}",
            f"{held}; activations come on top" if held.state.gradients else str(held),
        )
        if held.state.host:
            said = f"{held.state.host / 2**20:,.0f} a rank: float32 weights and the optimiser"
            table.add_row(f"MiB of host memory, {held.role}", said)
    for role in recipe.roles:
        own = recipe.plan_of(role)
        said = f"{own.world_size}: pp {own.pp} x dp {own.dp} ({own.data}) x cp {own.cp} x tp {own.tp}"
        table.add_row(f"ranks, {role}", said)
    if len(recipe.roles) > 1:
        table.add_row("placement", f"{recipe.placement}, {recipe.world_size} ranks in all")
    if plan.pp > 1:
        waits, holds = (
            of(TRAINED[plan.schedule], plan.pp, plan.micro_batches, chunks=plan.parts_per_rank)
            for of in (bubble, held_micro_batches)
        )
        table.add_row(
            "pipeline", f"{plan.schedule}: waits {waits:.0%} of a step, holds {holds:.3g} micro-batches"
        )
    if (expected := expected_step(recipe, spec, path.parent / recipe.data, roles[0].state)) is not None:
        table.add_row(f"on an {DEVICE.name}", str(expected))
    table.add_row("rows", f"{recipe.batch // plan.dp} a rank, in {plan.micro_batches} parts")
    table.add_row("start", start_command(path, recipe.world_size))
    return table


def start_command(recipe: Path, ranks: int) -> str:
    """Return the command that a person types; on machines of eight GPUs, if there are several."""
    if ranks == 1:
        return f"millstream train {recipe}"
    machines = ranks // GPUS_A_MACHINE if ranks % GPUS_A_MACHINE == 0 else 1
    if machines == 1:
        return f"torchrun --nproc-per-node {ranks} -m millstream train {recipe}"
    where = (
        f"--nnodes {machines} --nproc-per-node {GPUS_A_MACHINE} --rdzv-backend c10d --rdzv-endpoint "
        "HOST:29400"
    )
    return f"on each of {machines} machines: torchrun {where} -m millstream train {recipe}"
