"""Steps that wait for their rows. The profiler names it in a trace; a loader that works ahead takes it
away."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.profiler.reading import read
from millstream.profiler.rules.diagnosis import Diagnosis
from millstream.train.finetune.loader import RowLoader
from millstream.train.parallel.task import FlowRows

DATA_BOUND = "data- or encode-bound"


def run(reader: Reader, steps: int = 8, load: float = 0.05, work: float = 0.06) -> None:
    """`load`: seconds that rows take; `work`: seconds of a step."""
    if steps < 2 or load <= 0 or work < 0:
        raise CourseError(f"--steps must be 2 or more and --load positive, got {steps} and {load:g}")
    rows = FlowRows(*torch.zeros(4, 1, 1))
    at = torch.device("cpu")

    def make(step: int) -> FlowRows:
        time.sleep(load)  # a disk, a decoder of video
        return rows

    guess = reader.predict(
        f"rows take {load:g} s, a step {work:g} s, one after the other. What share of the time waits, in %?"
    )
    waited, diagnosis = _profiled(lambda step: make(step), steps, work)
    reader.reveal(guess, 100 * load / (load + work), by="load / (load + work)", tolerance=0.1)
    reader.measured(f"symptom: {waited:.2f} s of {steps} steps are spent before they begin")
    reader.say(
        f"tool: the profiler on a trace of this says {diagnosis.verdict.name}; advice: "
        f"{diagnosis.verdict.advice}"
    )
    assert diagnosis.verdict.name == DATA_BOUND, f"{diagnosis}"
    with RowLoader(make, at, position=0) as loader:
        ahead, _ = _profiled(lambda step: loader.next(), steps, work)
    reader.measured(
        f"fix: train.tuning.loader makes rows ahead, in a thread: {ahead:.2f} s are spent waiting"
    )
    assert ahead < 0.7 * waited, f"{ahead} s against {waited} s"


def _profiled(rows_of: Callable[[int], object], steps: int, work: float) -> tuple[float, Diagnosis]:
    """Seconds that steps waited for rows, and what the profiler says."""
    weight = torch.randn(64, 64)
    waited = 0.0
    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for step in range(steps):
                begin = time.perf_counter()
                with record_function("dataloader next_batch"):
                    rows_of(step)
                waited += time.perf_counter() - begin
                until = time.perf_counter() + work
                while time.perf_counter() < until:
                    weight @ weight
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return waited, read([path]).diagnosis
