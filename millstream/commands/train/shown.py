"""Display of a fine-tuning run while it runs: a line with a bar, or lines in a log, and the same in
TensorBoard and elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType

import msgspec
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column
from torch import Tensor

from millstream.commands.log_lines import LogLines
from millstream.commands.train.gallery import Gallery
from millstream.commands.train.streams import sample_prompts, sample_streams
from millstream.commands.train.weights_and_biases import open_wandb
from millstream.core.chunk_work import call_flops
from millstream.core.config import DiTConfig
from millstream.ops.memory import most_bytes_in_use
from millstream.planner.hardware import named_by_driver
from millstream.train.finetune.meter import TuningReport
from millstream.train.finetune.run import TuningRun

NOT_SHOWN = ("skipped", "loss_scale", "overflows")
"""Among the losses: said elsewhere in the line."""


def model_flops(dit: DiTConfig, report: TuningReport, *, lora: bool) -> float:
    """FLOPs that the model needs: a forward pass and twice that backward, or once where weights are frozen.
    Not what is made again."""
    return call_flops(dit, report.tokens, round(report.keys_per_query)) * (2 if lora else 3)


def peak_tflops(device_name: str) -> float | None:
    """Return the bf16 peak of a GPU whose datasheet is known; else None."""
    device = named_by_driver(device_name)
    return None if device is None or device.processor else device.bf16_tflops


def progress_line(
    report: TuningReport, flops: float, *, ranks: int, peak: float | None, peak_bytes: int
) -> str:
    """Format a line on the work since the last report."""
    seconds = max(report.seconds, 1e-9)
    losses = "  ".join(
        f"{name} {value:.4g}" for name, value in report.losses.items() if name not in NOT_SHOWN
    )
    rest = f"{peak_bytes / 2**30:.1f} GiB  data {report.waiting:.0%}"
    if not report.tokens:  # by a method whose roles see more tokens than a batch has
        return f"{losses}  {seconds / max(report.steps, 1):.3g} s a step  {rest}"
    tflops = flops / seconds / 1e12
    speed = f"{tflops:,.0f}" if tflops >= 100 else f"{tflops:.3g}"
    used = "" if peak is None else f"  MFU {tflops / ranks / peak:.0%}"
    scale = ""
    if "loss_scale" in report.losses:
        scale = f"  scale {report.losses['loss_scale']:g}, {report.losses['overflows']:.0f} overflows"
    return f"{losses}  {report.tokens / seconds:,.0f} tokens/s  {speed} TFLOP/s{used}  {rest}{scale}"


class ShownRun:
    def __init__(self, run: TuningRun) -> None:
        self._run = run
        self._last: TuningReport | None = None
        said = TextColumn(
            "{task.fields[said]}", table_column=Column(ratio=1)
        )  # it wraps where the terminal is narrow
        columns = said, BarColumn(bar_width=12), MofNCompleteColumn(), TextColumn("{task.fields[left]}")
        console = Console(stderr=True)
        self._lines = LogLines(console)
        self._progress = Progress(*columns, console=console, expand=True, disable=not self._lines.has_bar)
        learns = f"{run.learning / 1e6:.2f}M parameters learn"
        self._task = self._progress.add_task("", total=run.recipe.steps, said=learns, left="")
        self._named_slow = set[int]()
        self._gallery = Gallery(run.folder)
        self._prompts = sample_prompts(run.recipe, run.clips)
        self._said_unknown = False
        self._wandb = None
        if project := run.recipe.wandb:
            self._wandb = open_wandb(project, run.folder, msgspec.to_builtins(run.recipe))
            if self._wandb is None:
                self._progress.console.print(
                    "wandb is not installed (pip install wandb); the run goes on without it"
                )
        on_gpu = run.device.type == "cuda"
        self._peak = peak_tflops(torch.cuda.get_device_name(run.device)) if on_gpu else None

    def __enter__(self) -> ShownRun:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        self._gallery.__exit__(kind, error, trace)
        if self._wandb is not None:
            self._wandb.close()

    def add(self, report: TuningReport) -> None:
        run = self._run
        done = report.step + 1
        now = report.since(self._last)
        self._last = report
        said = progress_line(
            now,
            model_flops(run.spec.dit, now, lora=run.recipe.lora is not None),
            ranks=run.groups.everybody.size,
            peak=self._peak,
            peak_bytes=most_bytes_in_use(run.device),
        )
        if report.losses["skipped"]:
            norms = ", ".join(
                f"{value:.3g}" for name, value in report.losses.items() if name.endswith("norm")
            )
            self._progress.console.print(f"step {done}: gradients of norm {norms} were not followed")
        if run.stragglers.slow.keys() - self._named_slow:
            self._progress.console.print(f"step {done}: {run.stragglers.message()}")
        self._named_slow = set(run.stragglers.slow)
        left = f"{timedelta(seconds=round(report.left_s))} left"
        self._progress.update(self._task, completed=done, said=said, left=left)
        self._lines.add(done, report.total, f"{said}  {left}")
        self._gallery.add_losses("tuning", report)
        if self._wandb is not None:
            speed = {"tokens/s": now.tokens / max(now.seconds, 1e-9), "data": now.waiting}
            self._wandb.add(done, report.losses | {"lr": report.lr} | speed)

    def add_streams(self, step: int, learnt: Mapping[str, Tensor]) -> None:
        made = sample_streams(self._run, self._prompts, step, learnt)
        self._gallery.add_sheet("tuning", step, made.sheet_HW3)
        if made.unknown and not self._said_unknown:
            self._said_unknown = True
            self._progress.console.print(
                f"sample_prompts: {self._run.spec.name} has no word for {', '.join(made.unknown)}"
            )
        if self._wandb is not None:
            self._wandb.add_clips(step, made.clips, made.prompts)
