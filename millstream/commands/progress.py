"""A progress line while chunks come, and a table of where the time went at the end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from millstream.commands.log_lines import LogLines
from millstream.core.trace import ChunkTiming, Totals


@contextmanager
def counting_bar(name: str, total: int) -> Iterator[Callable[[], None]]:
    """A progress bar that each call moves by one; in a log, lines."""
    columns = (
        TextColumn("{task.description:>9}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    done = itertools.count(1)
    lines = LogLines(console, counted=name)
    with Progress(*columns, console=console, disable=not lines.has_bar) as progress:
        task = progress.add_task(name, total=total)

        def tick() -> None:
            progress.advance(task)
            lines.add(next(done), total)

        yield tick


class ChunkProgress:
    """Shows frames done, frames a second and milliseconds per phase of the last chunk; in a log, lines of
    it."""

    def __init__(self, label: str, *, total_frames: int | None, quiet: bool = False) -> None:
        self.totals = Totals()
        self._loud = Console(stderr=True)
        self._console = Console(stderr=True, quiet=True) if quiet else self._loud
        self._lines = LogLines(self._console, counted=f"{label}: frame")
        self._total_frames = total_frames
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed}/{task.total} frames" if total_frames else "{task.completed} frames"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=self._console,
            expand=True,
            disable=not self._lines.has_bar,
        )
        self._task: TaskID = self._progress.add_task(label, total=total_frames, speed="")

    def __enter__(self) -> ChunkProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if kind is None and self.totals.chunks:
            self._console.print(self._table())

    def add(self, timing: ChunkTiming, frames: int) -> None:
        self.totals.add(timing, frames)
        largest = sorted(timing.phases_ms.items(), key=lambda item: -item[1])[:3]
        phases = " ".join(f"{name} {ms:.0f}" for name, ms in largest)
        speed = f"{self.totals.fps:.1f} FPS, ms: {phases}"
        self._progress.update(self._task, advance=frames, speed=speed)
        self._lines.add(self.totals.frames, self._total_frames, speed)

    def say(self, line: str) -> None:
        """Something worth knowing; not said when quiet."""
        self._console.print(line, highlight=False)

    def warn(self, line: str) -> None:
        """Something that must be known, quiet or not."""
        self._loud.print(line, highlight=False)

    def _table(self) -> Table:
        totals = self.totals
        title = f"{totals.frames} frames in {totals.total_ms / 1000:.2f} s: {totals.fps:.1f} FPS"
        table = Table("phase", "ms per chunk", "share", title=title, title_justify="left")
        for name, ms in sorted(totals.phases_ms.items(), key=lambda item: -item[1]):
            table.add_row(name, f"{ms / totals.chunks:.1f}", f"{ms / totals.total_ms:.1%}")
        return table
