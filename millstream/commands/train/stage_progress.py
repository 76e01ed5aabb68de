"""Display of training stages: a bar each, or lines in a log, with the losses."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from millstream.commands.log_lines import LogLines
from millstream.train.loop import StepReport


class StageProgress:
    """One bar a stage, with its losses."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
            disable=not console.is_interactive,
        )
        self._stages: dict[str, tuple[TaskID, LogLines]] = {}

    def __enter__(self) -> StageProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def add(self, stage: str, report: StepReport) -> None:
        if stage not in self._stages:
            task = self._progress.add_task(stage, total=report.total, said="")
            self._stages[stage] = task, LogLines(self._console)
        task, lines = self._stages[stage]
        said = " ".join(f"{name} {value:.4f}" for name, value in report.losses.items() if "norm" not in name)
        self._progress.update(task, completed=report.step + 1, said=said)
        lines.add(report.step + 1, report.total, f"{stage}  {said}")
