"""`millstream train judge`: the judge that training by reward never sees."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from millstream.commands.progress import counting_bar
from millstream.engine.device_choice import choose_device
from millstream.trainer.evaluate.held_back import JudgeTraining, train_judge
from millstream.trainer.loop import LOG_EVERY, StepReport


def run_train_judge(out: Path, plan: JudgeTraining, *, device: str) -> Path:
    """The file that was written."""
    with counting_bar("judge", len({*range(0, plan.steps, LOG_EVERY), plan.steps - 1})) as tick:

        def report(_: StepReport) -> None:
            tick()

        path, found = train_judge(plan, out, choose_device(device), report)
    said = ", ".join(f"{name} {share:.3f}" for name, share in found.items())
    Console(stderr=True).print(f"recognised in renders that it has not seen: {said}")
    return path
