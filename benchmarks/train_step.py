"""A training step on one GPU: seconds and peak memory by what is kept for the backward pass, beside the plan.

    python -m benchmarks.train_step                         # the 1.3B, every way
    python -m benchmarks.train_step --only 14b-lora-full
    python -m benchmarks.train_step --page                  # writes the last result into docs/training.md, and its plot

480x832 and 21 latent frames (32,760 tokens) in chunks of 3, diffusion forcing over all that came before, one clip, random
weights, by the learner that `millstream train RECIPE` uses. *Forward and backward* is without the optimiser, in time and
memory, as others publish it; *step* is with it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.pages import row, write_between
from benchmarks.report import RESULTS, write_report
from millstream.core.config import SPATIAL_STRIDE
from millstream.core.presets import find_model
from millstream.models.adapters import add_adapters
from millstream.models.registry import load_dit
from millstream.parallel.training.groups import create_training_groups
from millstream.parallel.training.learner import Learner, make_learner
from millstream.parallel.training.plan import ParallelPlan
from millstream.parallel.training.task import FlowRows, TrainingTask
from millstream.planner.flops import call_flops
from millstream.planner.hardware import DEVICES
from millstream.planner.training import LearningWork, TrainingState, learner_state, learning_peak, learning_time
from millstream.trainer.sequence import ChunkedSequence, diffusion_forced
from millstream.trainer.tuning.recipe import TuningRecipe
from millstream.trainer.tuning.rows import flow_error

FRAMES, FRAMES_PER_CHUNK, SIZE = 21, 3, (480, 832)
RUNS, WARM_UP = 4, 2
SMALL, LARGE = "wan2.1-t2v-1.3b", "wan2.1-t2v-14b"
LORA_RANK = 32
CASES: dict[str, dict[str, Any]] = {
    "1.3b-none": {"model": SMALL, "recompute": "none"},
    "1.3b-selective": {"model": SMALL, "recompute": "selective"},
    "1.3b-full": {"model": SMALL, "recompute": "full"},
    "1.3b-fp8-none": {"model": SMALL, "recompute": "none", "precision": "fp8"},
    "14b-lora-full": {"model": LARGE, "recompute": "full", "rank": LORA_RANK},
}
PUBLISHED = {"none": {"seconds": 1.72, "peak_gib": 109.0}, "full": {"seconds": 2.25, "peak_gib": 9.6}}
"""Self-Forcing's own code on the same card, the 1.3B."""
WITHIN = {"seconds": 0.10, "peak_gib": 0.05}
"""Of the plan."""


class Trained(NamedTuple):
    """A model that learns, what it learns from, and what the planner is told of it."""

    learner: Learner
    rows: FlowRows
    work: LearningWork
    state: TrainingState


def prepare(case: dict[str, Any]) -> Trained:
    spec, rank, device, plan = find_model(case["model"]), case.get("rank", 0), torch.device("cuda"), ParallelPlan()
    asked = dict(model=spec.name, weights=("random",), data="", steps=1, batch=1, lr=1e-5, recompute=case["recompute"])
    recipe = TuningRecipe(**asked, precision=case.get("precision", "bf16"), compile="inductor")
    dit = load_dit(spec, recipe.weights, device=device, dtype=torch.bfloat16 if rank else torch.float32)
    frozen = sum(parameter.numel() for parameter in dit.parameters()) if rank else 0
    dit.requires_grad_(requires_grad=True)
    if rank:
        add_adapters(dit, rank=rank, alpha=rank, parts=("self_attn", "cross_attn", "ffn"))
    learning = sum(parameter.numel() for parameter in dit.parameters() if parameter.requires_grad)
    latent_size = SIZE[0] // SPATIAL_STRIDE, SIZE[1] // SPATIAL_STRIDE
    layout = diffusion_forced(FRAMES // FRAMES_PER_CHUNK, FRAMES_PER_CHUNK, FRAMES)
    sequence = ChunkedSequence(layout, spec.dit, latent_size, device)
    options = replace(recipe.options, compile=recipe.backend(device.type))
    groups = create_training_groups(plan, device)
    learner = make_learner(
        TrainingTask(
            dit=dit, sequence=sequence, latent_size=latent_size, loss=flow_error, plan=plan, groups=groups, options=options
        )
    )
    latents = torch.randn(1, FRAMES, spec.dit.channels, *latent_size, device=device)
    text = torch.randn(1, spec.dit.text_tokens, spec.dit.text_width, device=device)
    rows = FlowRows(latents, 1000 * torch.rand(1, FRAMES, device=device), text, torch.randn_like(latents))
    tokens, keys = sequence.num_tokens, sequence.keys_per_query
    work = LearningWork(dit=spec.dit, tokens=tokens, keys=keys, recompute=recipe.recompute, is_frozen=rank > 0)
    return Trained(learner, rows, work, learner_state(learning, frozen, data=plan.data, ranks=1, frozen_bytes=2))


def measure(name: str) -> dict[str, float]:
    """In a process of its own."""
    learner, rows, work, state = prepare(CASES[name])

    def forward_and_backward() -> None:
        learner._backward(rows)
        learner.optimiser.zero_grad(set_to_none=True)

    alone_s, alone_gib = timed(forward_and_backward)
    step_s, step_gib = timed(lambda: learner.learn(rows))
    flops = call_flops(work.dit, work.tokens, round(work.keys)) * (2 if work.is_frozen else 3)
    found = {
        "seconds": alone_s,
        "peak_gib": alone_gib,
        "step_seconds": step_s,
        "step_peak_gib": step_gib,
        "model_tflops": flops / alone_s / 1e12,
    }
    if learner.options.precision == "fp8":
        return found  # the planner speaks of bf16
    return found | {
        "planned_seconds": learning_time(work, DEVICES["h200"]).total / 1e3,
        "planned_peak_gib": learning_peak(work, replace(state, optimizer=0.0)) / 2**30,
        "planned_step_peak_gib": learning_peak(work, state) / 2**30,
    }


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds in the median, and the most gibibytes in use."""
    for _ in range(WARM_UP):
        run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds), torch.cuda.max_memory_allocated() / 2**30


def off_plan(found: dict[str, dict[str, float]]) -> list[str]:
    """What is not as planned."""
    return [
        f"{name}: {what} {case[what]:.3g}, planned {case[f'planned_{what}']:.3g}"
        for name, case in found.items()
        for what, within in WITHIN.items()
        if f"planned_{what}" in case and abs(case[what] / case[f"planned_{what}"] - 1) > within
    ]


def table(report: dict[str, Any]) -> Iterator[str]:
    """Of a result, for a page."""
    heads = ("what", "forward and backward", "planned", "peak", "planned", "model TFLOP/s", "step with optimiser", "its peak")
    yield row(heads)
    yield row(["---"] * len(heads))
    for name, case in report["measured"]["cases"].items():
        planned = (
            (f"{case['planned_seconds']:.2f} s", f"{case['planned_peak_gib']:.1f} GiB")
            if "planned_seconds" in case
            else ("", "")
        )
        peak = f"{case['peak_gib']:.1f} GiB"
        step = f"{case['step_seconds']:.2f} s", f"{case['step_peak_gib']:.1f} GiB"
        yield row((name, f"**{case['seconds']:.2f} s**", planned[0], peak, planned[1], f"{case['model_tflops']:.0f}", *step))
    yield ""
    yield f"{report['hardware']['gpu']}, torch {report['versions']['torch']}, commit `{report['commit']}`."


def plot(report: dict[str, Any], path: Path) -> None:
    """Seconds against memory: what recomputing buys."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6))
    cases = {
        name.removeprefix("1.3b-"): case
        for name, case in report["measured"]["cases"].items()
        if name.startswith("1.3b") and "fp8" not in name
    }
    ours = [(case["peak_gib"], case["seconds"]) for case in cases.values()]
    axes.plot(*zip(*ours, strict=True), "o-", label="Millstream")
    for (gib, seconds), name in zip(ours, cases, strict=True):
        axes.annotate(name, (gib, seconds), textcoords="offset points", xytext=(6, 6))
    theirs = [(each["peak_gib"], each["seconds"]) for each in PUBLISHED.values()]
    axes.plot(*zip(*theirs, strict=True), "s--", label="Self-Forcing's code")
    axes.set(xlabel="peak memory, GiB", ylabel="forward and backward, s", xlim=(0, None), ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def write_page() -> None:
    docs = RESULTS.parents[1] / "docs"
    report = json.loads((RESULTS / "train_step.json").read_text())
    write_between(docs / "training.md", "benchmarks.train_step", table(report))
    plot(report, docs / "pictures" / "train-step.png")


def main() -> None:
    parser = argparse.ArgumentParser(description="A training step's time and memory on one GPU.")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--measure", metavar="CASE", help="be one of the processes that are measured")
    parser.add_argument("--page", action="store_true", help="write the last result into docs/training.md and measure nothing")
    options = parser.parse_args()
    if options.page:
        write_page()
        return
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    found = {}
    for name in options.only:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.train_step", "--measure", name], check=True, stdout=subprocess.PIPE, text=True
        )
        found[name] = {what: round(value, 4) for what, value in json.loads(done.stdout.splitlines()[-1]).items()}
        print(name, found[name], file=sys.stderr, flush=True)
    asked = {"size": SIZE, "latent_frames": FRAMES, "frames_per_chunk": FRAMES_PER_CHUNK, "batch": 1, "precision": "bf16"}
    write_report("train_step", asked, {"cases": found, "published": PUBLISHED, "off_plan": off_plan(found)})


if __name__ == "__main__":
    main()
