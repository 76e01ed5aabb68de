"""`millstream train brook`: all stages in order, going on from whatever the run's folder already holds.

    torchrun --nproc-per-node 2 -m millstream train brook

Ranks share every batch and end where one process does; the first writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

from millstream.commands.train.gallery import Gallery
from millstream.commands.train.run_folder import RUN, say_stopping, writing_to
from millstream.commands.train.stage_progress import StageProgress
from millstream.commands.train.tune import process_group
from millstream.core.errors import ConfigError
from millstream.core.presets import find_model
from millstream.planner.memory import dit_parameters, text_parameters, vae_parameters
from millstream.train.brook import BrookRun
from millstream.train.evaluate.classifier import ClipClassifier
from millstream.train.evaluate.motion import MotionJudge
from millstream.train.loop import StepReport
from millstream.train.parallel.groups import create_world
from millstream.train.plan import RunPlan, read_plan
from millstream.train.pool_rendering import check_walks
from millstream.train.recipe import RECIPES
from millstream.train.share import ALONE, BatchShare
from millstream.video.writer import check_parent_writable

MIB = 2**20


def run_train_brook(
    *,
    recipe: Path | None,
    smoke: bool,
    out: Path,
    device: str,
    until: str | None,
    dry_run: bool,
    changes: Sequence[str] = (),
) -> None:
    if smoke and recipe is not None:
        raise ConfigError("give either --smoke or --recipe, not both")
    plan = read_plan(recipe or RECIPES / ("brook-smoke.toml" if smoke else "brook.toml"), changes)
    check_walks(plan)
    if until is not None:
        plan.stage(until)
    check_parent_writable(out / RUN)
    console = Console(stderr=True)
    if dry_run:
        console.print(_table(plan))
        return
    with writing_to(out), process_group(device) as here:
        run = BrookRun(
            plan, out, device=here, share=BatchShare(create_world()) if dist.is_initialized() else ALONE
        )
        if run.share.is_first:
            _train_shown(run, console, until)
        else:
            run.train(lambda stage, said: None, until=until)
        if run.share.is_first and until in (None, plan.stages[-1].name):
            run.export(
                out / "brook.safetensors",
                {"seed": plan.seed, "torch": str(torch.__version__), "stages": _stages(plan)},
            )


def _train_shown(run: BrookRun, console: Console, until: str | None) -> None:
    with StageProgress(console) as progress, Gallery(run.folder) as gallery:

        def report(stage: str, said: StepReport) -> None:
            progress.add(stage, said)
            gallery.add_losses(stage, said)

        run.train(report, gallery.add_sheet, until=until, on_asked=say_stopping)


def _stages(plan: RunPlan) -> list[dict[str, object]]:
    return [
        {"name": s.name, "method": s.method, "steps": s.steps, "batch": s.batch, "lr": s.lr}
        for s in plan.stages
    ]


def _table(plan: RunPlan) -> Table:
    """Tabulate what would be trained, and what it must hold: weights, gradients, two moments and an average
    in float32."""
    spec = find_model(plan.model)
    dit = dit_parameters(spec.dit)
    vae = vae_parameters(spec.vae)
    text = text_parameters(spec.text)
    judge = sum(parameter.numel() for parameter in ClipClassifier().parameters())
    trained = {
        "vae": vae,
        "flow": dit + text,
        "ode": dit,
        "consistency": dit,
        "dmd": 2 * dit,
        "self_forcing": 2 * dit,
        "classify": judge,
        "motion": sum(parameter.numel() for parameter in MotionJudge().parameters()),
    }
    beside = dit + vae + 2 * text
    held = {
        "vae": 0,
        "flow": vae,
        "ode": beside,
        "consistency": beside,
        "dmd": beside,
        "self_forcing": beside,
        "classify": 0,
        "motion": 0,
    }
    table = Table(
        "stage", "method", "steps", "batch", "trained", "state MiB", title=f"{plan.model}, seed {plan.seed}"
    )
    for stage in plan.stages:
        count = trained[stage.method]
        state = (20 * count + 4 * held[stage.method]) / MIB
        table.add_row(
            stage.name,
            stage.method,
            str(stage.steps),
            str(stage.batch),
            f"{count / 1e6:.2f}M",
            f"{state:.0f}",
        )
    clips = plan.pool.clips + plan.pool.switches + plan.pool.walks + plan.pool.walk_switches
    latents = clips * plan.pool.latent_frames * spec.dit.channels * (plan.pool.size // 8) ** 2 * 2
    table.add_row("(pool)", f"{clips} clips", "", "", "", f"{latents / MIB:.0f}")
    return table
