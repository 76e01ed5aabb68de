"""`millstream train judge`: the judge that training by reward never sees."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from millstream.commands.progress import counting_bar
from millstream.commands.train.run_folder import say_stopping, writing_to
from millstream.commands.train.stage_progress import StageProgress
from millstream.engine.device_choice import choose_device
from millstream.train.evaluate.held_back import JudgeTraining, render_looks, render_ticks, train_judge


def run_train_judge(out: Path, plan: JudgeTraining, *, device: str) -> Path | None:
    """The file that was written; None if it was stopped before its end."""
    here = choose_device(device)
    console = Console(stderr=True)
    with writing_to(out):
        with counting_bar("renders", render_ticks(plan)) as tick:
            looks = render_looks(plan, here, tick)
        with StageProgress(console) as progress:
            path, found = train_judge(
                plan, looks, out, here, lambda said: progress.add("judge", said), say_stopping
            )
        said = ", ".join(f"{name} {share:.3f}" for name, share in found.items())
        console.print(f"recognised in renders that it has not seen: {said}")
        return path
    return None
