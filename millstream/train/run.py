"""Training run, whatever is trained: take steps, log, evaluate, save, stop and go on.

Knows neither models nor data: what a step is, what is logged of it, how state is saved, when steps are left
out and what is shown are hooks. Brook's stages (`loop.py`), fine-tuning and distillation (`finetune/run.py`)
and tuning by reward (`rl/run.py`) are runs.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from millstream.train.curve import cut_curve

Report = TypeVar("Report")


class TrainingRun(ABC, Generic[Report]):
    """Run on every rank of those that train together: all of them call all hooks alike, the first one writes
    and reports."""

    first_line: ClassVar[int] = 0
    """Number that the curve gives the first step."""
    steps: int
    checkpoint_every: int
    curve: Path
    """File of the curve, a JSON object a line, step by step."""
    is_first: bool = True

    @abstractmethod
    def load(self) -> int:
        """Load the newest state, where there is one; return the number of steps done."""

    @abstractmethod
    def take_step(self, step: int) -> int:
        """Take a step after so many; return how many are done then: one more, or fewer where the run goes
        back."""

    @abstractmethod
    def report(self, step: int) -> tuple[Report, dict[str, Any]] | None:
        """Return the report after this many steps and its line in the curve; None where nothing is
        reported."""

    @abstractmethod
    def save(self, step: int) -> None:
        """Save all that the run goes on from after so many steps."""

    def begin(self, step: int, kept: list[dict[str, Any]]) -> AbstractContextManager[object]:
        """Prepare the first step of this process, given the lines of the curve; return the context in which
        steps are taken."""
        return nullcontext()

    def evaluate(self, step: int) -> None:
        """Evaluate; called after every step, before it is saved."""

    def show(self, step: int) -> None:
        """Show what was learnt; called when a checkpoint was due and at the end, after it was saved."""

    def finish(self) -> None:
        """Finish; called after the last step of this process."""

    def is_asked(self, asked: bool) -> bool:
        """Return whether the run was asked to stop, on any rank."""
        return asked

    @property
    def may_save(self) -> bool:
        """True if a checkpoint that is due may be written now."""
        return True

    @property
    def is_over(self) -> bool:
        """True if the run ends before its last step."""
        return False

    def run(self, report: Callable[[Report], None], stop: Callable[[], bool]) -> bool:
        """Train to the end, going on from the last checkpoint, or until `stop`, saved there; return whether
        it is the end."""
        step = self.load()
        kept = cut_curve(self.curve, lambda made: made < step + self.first_line) if self.is_first else []
        with self.begin(step, kept), self.curve.open("a") if self.is_first else nullcontext() as curve:
            while step < self.steps and not self.is_over:
                before = step
                step = self.take_step(step)
                if step <= before:
                    continue
                if (reported := self.report(step)) is not None and curve is not None:
                    curve.write(json.dumps(reported[1]) + "\n")
                    curve.flush()
                    report(reported[0])
                self.evaluate(step)
                stopped = self.is_asked(stop())
                is_last = step == self.steps or self.is_over
                is_due = step % self.checkpoint_every == 0 and self.may_save
                if is_due or is_last or stopped:
                    self.save(step)
                if stopped:
                    break
                if is_due or is_last:
                    self.show(step)
        self.finish()
        return step == self.steps or self.is_over
