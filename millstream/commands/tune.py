"""`millstream tune RECIPE`: a model that exists learns from rewards, on one device, or with its rollouts on
another:

    torchrun --nproc-per-node 2 -m millstream tune RECIPE

A run's folder can be read years later: the recipe, what it ran on, curves of reward and judge, clips, and
what was learnt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from millstream.commands.log_lines import LogLines
from millstream.commands.plan.tune import choose_placement
from millstream.commands.report import describe
from millstream.commands.train.run_folder import (
    RUN,
    keep_record,
    refuse_other_recipe,
    say_stopping,
    writing_to,
)
from millstream.commands.train.tune import process_group
from millstream.core.config import ModelSpec
from millstream.core.files import Staging
from millstream.core.presets import find_model
from millstream.planner.memory import dit_parameters
from millstream.planner.training import lora_parameters
from millstream.report.page import Row, page, table
from millstream.report.svg import curves
from millstream.train.export import check_export, export
from millstream.train.interrupt import Interrupt, Stopped
from millstream.train.parallel.groups import create_world
from millstream.train.rl.control import Evaluated, best_by_judge
from millstream.train.rl.evaluation import Evaluation
from millstream.train.rl.recipe import PolicyRecipe, read_policy_recipe
from millstream.train.rl.remote_rollouts import MAKER, obey
from millstream.train.rl.run import PolicyReport, PolicyRun, make_actor, make_batches
from millstream.video.writer import VideoWriter, check_parent_writable

PAGE = "curves.html"
SAMPLES = "samples"
MIB = 2**20
SHOWN = ("reward", "kl", "clipped", "left_out")
"""Numbers of a step that its line shows."""


def run_tune(path: Path, *, out: Path | None, device: str, dry_run: bool) -> Path | None:
    """The file that was written; None if the run was stopped before its end."""
    recipe = read_policy_recipe(path)
    spec = find_model(recipe.model)
    recipe.check(spec, path.parent)
    check_export(recipe, spec)
    folder = out or path.with_suffix("")
    check_parent_writable(folder / RUN)
    if dry_run:
        Console().print(_table(recipe, spec))
        return None
    with writing_to(folder):
        refuse_other_recipe(folder, path, PolicyRecipe.RENAMED)
        return _train(recipe, spec, path, folder, device)


def _train(recipe: PolicyRecipe, spec: ModelSpec, path: Path, folder: Path, device: str) -> Path | None:
    with process_group(device) as here, Interrupt(say_stopping) as interrupt:
        world = create_world() if dist.is_initialized() else None
        placement, line = choose_placement(recipe, spec, here, 1 if world is None else world.size)
        recipe = msgspec.structs.replace(recipe, placement=placement)
        if world is not None and world.rank == MAKER:
            actor = make_actor(recipe, spec, here)
            obey(make_batches(recipe, spec, actor, path.parent, here, threaded=False), world)
            return None
        Console(stderr=True).print(line, soft_wrap=True, highlight=False)
        with closing(PolicyRun(recipe, spec, folder, path.parent, here, world)) as run:
            keep_record(folder, path, _record(recipe))
            with ShownTuning(run) as shown:
                finished = run.train(shown.add, lambda: interrupt.asked, shown.add_evaluation)
        if not finished:
            raise Stopped
        if run.has_parted:
            Console(stderr=True).print(_parted(run))
    return export(recipe, spec, folder, run.learnt())


def _record(recipe: PolicyRecipe) -> dict[str, Any]:
    return describe(
        "tune", msgspec.to_builtins(recipe), {"rewards": [reward.kind for reward in recipe.rewards]}
    )


def _parted(run: PolicyRun) -> str:
    best = best_by_judge(run.evaluated)
    last = run.evaluated[-1]
    return (
        f"reward and judge parted: reward {best.reward:.4f} to {last.reward:.4f}, judge {best.judge:.4f} to "
        f"{last.judge:.4f} "
        f"since step {best.step}, whose weights are kept"
    )


class ShownTuning:
    """Display of a tuning run: a line with a bar, a line for each evaluation, a page of curves, and clips."""

    def __init__(self, run: PolicyRun) -> None:
        self._run = run
        said = TextColumn("{task.fields[said]}", table_column=Column(ratio=1))
        columns = said, BarColumn(bar_width=12), MofNCompleteColumn(), TimeRemainingColumn()
        console = Console(stderr=True)
        self._lines = LogLines(console)
        self._progress = Progress(*columns, console=console, expand=True, disable=not self._lines.has_bar)
        self._task = self._progress.add_task("", total=run.recipe.steps, said="")

    def __enter__(self) -> ShownTuning:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def add(self, report: PolicyReport) -> None:
        for line in report.said:
            self._progress.console.print(f"step {report.step + 1}: {line}")
        numbers = report.numbers
        parts = [f"{name} {numbers[name]:.4g}" for name in SHOWN if name in numbers]
        said = "  ".join([*parts, f"{numbers['step_s']:.3g} s a step"])
        self._progress.update(self._task, completed=report.step + 1, said=said)
        self._lines.add(report.step + 1, self._run.recipe.steps, said)

    def add_evaluation(self, step: int, found: Evaluation, so_far: list[Evaluated]) -> None:
        judged = f", judge {found.judge:.4f}" if found.attributes else ""
        reward = f"{found.reward:.4f}" if math.isfinite(found.reward) else "unknown"
        self._progress.console.print(f"step {step}: reward {reward}{judged}, flicker {found.flicker:.4f}")
        folder = self._run.folder / SAMPLES / f"step-{step:06d}"
        for number, clip in enumerate(found.pixels_BTCYX[: self._run.recipe.samples]):
            with VideoWriter(folder / f"{number}.mp4", fps=self._run.config.fps, overwrite=True) as writer:
                writer.write(clip.permute(0, 2, 3, 1).contiguous().cpu().numpy())
        with Staging(self._run.folder) as staging:
            staging.path(PAGE).write_text(curves_page(self._run.recipe, so_far))


def curves_page(recipe: PolicyRecipe, found: Sequence[Evaluated]) -> str:
    """Reward and judge side by side: each from its lowest to its highest, and the numbers themselves."""
    series = {"reward": _in_its_range([(each.step, each.reward) for each in found])}
    if recipe.judge:
        series["judge"] = _in_its_range([(each.step, each.judge) for each in found])
    heads = ("step", "reward", "judge") if recipe.judge else ("step", "reward")
    rows = [
        Row(cells=(str(each.step), f"{each.reward:.4f}", f"{each.judge:.4f}")[: len(heads)]) for each in found
    ]
    parts = [
        f"<h1>{recipe.model} by {recipe.algorithm}</h1>",
        "<p>On prompts that are always the same, streamed as they are served. Where the reward rises and the "
        "judge, which is "
        "held back from training, falls, the model has learnt the reward's mistakes.</p>",
        curves(series, x_label="step", y_label="share of its own range"),
        table(heads, rows, numeric=range(len(heads))),
    ]
    return page("Tuning by reward", parts)


def _in_its_range(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    known = [(x, value) for x, value in points if math.isfinite(value)]
    values = [value for _, value in known]
    low = min(values, default=0.0)
    high = max(values, default=0.0)
    return [(x, (value - low) / (high - low) if high > low else 0.5) for x, value in known]


def _table(recipe: PolicyRecipe, spec: ModelSpec) -> Table:
    """Tabulate what would be tuned, by what, and what each role holds."""
    whole = dit_parameters(spec.dit)
    learns = whole if recipe.lora is None else lora_parameters(spec.dit, recipe.lora.rank)
    config = recipe.stream(spec)
    noise = recipe.noise(spec)
    rows = recipe.batch
    least, most = recipe.fork
    shown = Table("what", "value", title=f"{recipe.model}: {recipe.steps} steps of {recipe.algorithm}")
    shown.add_row("learns", f"{learns / 1e6:.2f}M of {whole / 1e6:.1f}M parameters")
    shown.add_row("rewards", ", ".join(f"{reward.kind} x {reward.scale:g}" for reward in recipe.rewards))
    shown.add_row("judge", recipe.judge or "none: nothing will tell whether the reward was cheated")
    shown.add_row(
        "rollouts",
        f"{recipe.prompts_per_step} prompts x {recipe.group} streams x {recipe.chunks} chunks a step",
    )
    shown.add_row("size", f"{config.height}x{config.width}, {rows} streams at once")
    shown.add_row("forks", f"after {least} to {most} chunks" if most else "none: streams begin apart")
    learnt = ", ".join(
        f"{noise.levels[i]:.0f} to {noise.following(i):.0f} (std {noise.std(i):.2g})" for i in noise.learnt
    )
    shown.add_row("learnt steps", learnt)
    rolls = 4 if recipe.precision == "fp32" else 2
    held = {"actor": 4 * whole + 12 * learns, "reference": 4 * whole, "rollout engine": 2 * rolls * whole}
    for role, num_bytes in held.items():
        shown.add_row(f"MiB, {role}", f"{num_bytes / MIB:,.0f}")
    ring = (
        2
        * rolls
        * spec.dit.layers
        * spec.dit.width
        * config.window
        * _tokens(spec, config.height, config.width)
        * rows
    )
    shown.add_row(
        "MiB, keys and values",
        f"{ring / MIB:,.0f}; activations come on top, {recipe.rows_at_once} rows at a time",
    )
    return shown


def _tokens(spec: ModelSpec, height: int, width: int) -> int:
    """Count the tokens of a latent frame."""
    cell = spec.stride * spec.dit.patch
    return (height // cell) * (width // cell)
