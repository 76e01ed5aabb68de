"""A training step on one GPU: seconds and peak memory by what is kept for the backward pass, beside the plan.

    python -m benchmarks.train_step                         # the 1.3B, every way
    python -m benchmarks.train_step --only 14b-lora-full    # the other rows stay as they were
    python -m benchmarks.train_step --self-forcing ../Self-Forcing  # and Self-Forcing's own code, from a checkout of it
    python -m benchmarks.train_step --kernels               # and how long kernels of each kind take
    python -m benchmarks.train_step --miniature             # tiny, on any device, to see that it runs; nothing is written
    python -m benchmarks.train_step --page                  # writes the last result into docs/training.md, and its plot,
                                                            # beside what the planner says now

480x832 and 21 latent frames (32,760 tokens) in chunks of 3, diffusion forcing over all that came before, one
clip, random weights, by the learner that `millstream train RECIPE` uses; a peer's rows are of the same sizes
(`peer_training.py`). *Forward and backward* is without the optimiser, in time and memory, as others publish
it, nor the float32 weights that it keeps with `masters`; *step* is with all of it.
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
from typing import Any, Literal, NamedTuple

import torch

from benchmarks.pages import row, write_between
from benchmarks.peer_training import prepare as prepare_peer
from benchmarks.report import RESULTS, write_report
from millstream.commands.report import row_origin
from millstream.core.chunk_work import call_flops
from millstream.core.config import SPATIAL_STRIDE
from millstream.core.presets import find_model
from millstream.models.adapters import add_adapters
from millstream.models.registry import load_dit
from millstream.planner.hardware import DEVICES
from millstream.planner.memory import dit_parameters
from millstream.planner.training import (
    LearningWork,
    TrainingState,
    learner_state,
    learning_peak,
    learning_time,
    lora_parameters,
)
from millstream.train.finetune.recipe import TuningRecipe
from millstream.train.finetune.rows import flow_error
from millstream.train.parallel.groups import create_training_groups
from millstream.train.parallel.learner import Learner, make_learner
from millstream.train.parallel.optimisers.masters import Masters
from millstream.train.parallel.plan import ParallelPlan
from millstream.train.parallel.task import FlowRows, TrainingTask
from millstream.train.sequence import ChunkedSequence, diffusion_forced, frames_seen

FRAMES = 21
FRAMES_PER_CHUNK = 3
SIZE = (480, 832)
MINIATURE = "wan-tiny", (32, 64)
RUNS = 4
WARM_UP = 1
SMALL = "wan2.1-t2v-1.3b"
LARGE = "wan2.1-t2v-14b"
LORA_RANK = 32
LAYOUT = diffusion_forced(FRAMES // FRAMES_PER_CHUNK, FRAMES_PER_CHUNK, FRAMES)
CASES: dict[str, dict[str, Any]] = {
    "1.3b-none": {"model": SMALL, "recompute": "none"},
    "1.3b-selective": {"model": SMALL, "recompute": "selective"},
    "1.3b-products": {"model": SMALL, "recompute": "products"},
    "1.3b-full": {"model": SMALL, "recompute": "full"},
    "1.3b-masters-none": {"model": SMALL, "recompute": "none", "masters": True},
    "1.3b-masters-selective": {"model": SMALL, "recompute": "selective", "masters": True},
    "1.3b-masters-products": {"model": SMALL, "recompute": "products", "masters": True},
    "1.3b-masters-full": {"model": SMALL, "recompute": "full", "masters": True},
    "1.3b-fp8-none": {"model": SMALL, "recompute": "none", "precision": "fp8"},
    "14b-lora-full": {"model": LARGE, "recompute": "full", "rank": LORA_RANK},
}
PEERS: dict[str, dict[str, Any]] = {
    "self-forcing-none": {"model": SMALL, "recompute": False},
    "self-forcing-full": {"model": SMALL, "recompute": True},
}
"""Self-Forcing's own code, of which a checkout is given."""
WITHIN = {"seconds": 0.10, "peak_gib": 0.05}
"""Largest relative difference from the plan."""
KINDS = {
    "attention": ("sdpa", "flash", "fmha"),
    "products": ("nvjet", "gemm", "cutlass", "xmma"),
    "walks": ("triton", "elementwise", "vectorized", "reduce", "memcpy", "memset", "cat"),
}
"""Kinds of kernels, with the parts of names that identify each."""


class Trained(NamedTuple):
    """A model that learns, what it learns from, and what the planner is told of it."""

    learner: Learner
    rows: FlowRows


class Planned(NamedTuple):
    """A case as the planner takes it."""

    work: LearningWork
    state: TrainingState


def plan_of(case: dict[str, Any], size: tuple[int, int] = SIZE) -> Planned:
    spec = find_model(case["model"])
    rank = case.get("rank", 0)
    masters = case.get("masters", False)
    tokens = size[0] * size[1] // (SPATIAL_STRIDE * spec.dit.patch) ** 2
    work = LearningWork(
        dit=spec.dit,
        tokens=FRAMES * tokens,
        keys=frames_seen(LAYOUT) * tokens,
        recompute=case["recompute"],
        is_frozen=rank > 0,
        learning_bytes=2 if masters else 4,
    )
    learning = lora_parameters(spec.dit, rank) if rank else dit_parameters(spec.dit)
    frozen = dit_parameters(spec.dit) if rank else 0
    state = learner_state(
        learning,
        frozen,
        data="replicas",
        ranks=1,
        frozen_bytes=2,
        learning_bytes=work.learning_bytes,
        masters=masters,
    )
    return Planned(work, state)


def planned(case: dict[str, Any]) -> dict[str, float]:
    """Return the plan of a case on the card that it is measured on; empty but for bf16, which the planner
    assumes."""
    if case.get("precision", "bf16") != "bf16":
        return {}
    work, state = plan_of(case)
    return {
        "planned_seconds": learning_time(work, DEVICES["h200"]).total / 1e3,
        "planned_peak_gib": learning_peak(work, replace(state, optimizer=0.0, masters=0.0)) / 2**30,
        "planned_step_peak_gib": learning_peak(work, state) / 2**30,
    }


def prepare(case: dict[str, Any], size: tuple[int, int], device: torch.device) -> Trained:
    spec = find_model(case["model"])
    rank = case.get("rank", 0)
    plan = ParallelPlan()
    asked = dict(
        model=spec.name, weights=("random",), data="", steps=1, batch=1, lr=1e-5, recompute=case["recompute"]
    )
    compiler: Literal["inductor", "aot_eager"] = "inductor" if device.type == "cuda" else "aot_eager"
    precision = case.get("precision", "bf16")
    masters = case.get("masters", False)
    recipe = TuningRecipe(**asked, precision=precision, masters=masters, compile=compiler)
    is_narrow = rank > 0 or recipe.learns_in == "bf16"
    dit = load_dit(spec, recipe.weights, device=device, dtype=torch.bfloat16 if is_narrow else torch.float32)
    dit.requires_grad_(requires_grad=True)
    if rank:
        add_adapters(dit, rank=rank, alpha=rank, parts=("self_attn", "cross_attn", "ffn"))
    latent_size = size[0] // SPATIAL_STRIDE, size[1] // SPATIAL_STRIDE
    sequence = ChunkedSequence(LAYOUT, spec.dit, latent_size, device)
    options = replace(recipe.options, compile=recipe.backend(device.type))
    groups = create_training_groups(plan, device)
    learner = make_learner(
        TrainingTask(
            dit=dit,
            sequence=sequence,
            latent_size=latent_size,
            loss=flow_error,
            plan=plan,
            groups=groups,
            options=options,
        )
    )
    latents = torch.randn(1, FRAMES, spec.dit.channels, *latent_size, device=device)
    text = torch.randn(1, spec.dit.text_tokens, spec.dit.text_width, device=device)
    rows = FlowRows(latents, 1000 * torch.rand(1, FRAMES, device=device), text, torch.randn_like(latents))
    return Trained(learner, rows)


def measure(name: str, *, miniature: bool, kernels: bool) -> dict[str, Any]:
    """In a process of its own."""
    case = CASES[name]
    size = SIZE
    if miniature:
        case = case | {"model": MINIATURE[0]}
        size = MINIATURE[1]
    learner, rows = prepare(case, size, torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    def forward_and_backward() -> None:
        learner._backward(rows)
        learner.optimiser.zero_grad(set_to_none=True)

    alone_s, alone_gib = timed(forward_and_backward)
    step_s, step_gib = timed(lambda: learner.learn(rows))
    work = plan_of(case, size).work
    flops = call_flops(work.dit, work.tokens, round(work.keys)) * (2 if work.is_frozen else 3)
    found: dict[str, Any] = {
        "seconds": alone_s,
        "peak_gib": alone_gib - masters_gib(learner),
        "step_seconds": step_s,
        "step_peak_gib": step_gib,
        "model_tflops": flops / alone_s / 1e12,
    }
    if kernels:
        found["kernels"] = kernel_times(forward_and_backward)
    return found


def measure_peer(name: str, checkout: Path, *, miniature: bool) -> dict[str, Any]:
    """Time a peer's step, in a process of its own."""
    spec = find_model(MINIATURE[0] if miniature else PEERS[name]["model"])
    size = MINIATURE[1] if miniature else SIZE
    step = prepare_peer(
        checkout,
        spec.dit,
        frames=FRAMES,
        frames_per_chunk=FRAMES_PER_CHUNK,
        latent_size=(size[0] // SPATIAL_STRIDE, size[1] // SPATIAL_STRIDE),
        recompute=PEERS[name]["recompute"],
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    )
    seconds, peak_gib = timed(step.run)
    return {"seconds": seconds, "peak_gib": peak_gib, **step.about}


def masters_gib(learner: Learner) -> float:
    masters = learner.optimiser.masters.values() if isinstance(learner.optimiser, Masters) else ()
    return sum(master.numel() * master.element_size() for master in masters) / 2**30


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds in the median, and the most gibibytes of a GPU in use."""
    on_gpu = torch.cuda.is_available()
    for _ in range(WARM_UP):
        run()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds), torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0


def kernel_times(run: Callable[[], object]) -> dict[str, Any]:
    """Milliseconds of each kind, and the dearest walks by name."""
    on_gpu = torch.cuda.is_available()
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CUDA if on_gpu else kinds.CPU]) as profile:
        run()
        if on_gpu:
            torch.cuda.synchronize()
    rows = [(each.key, each.count, each.self_device_time_total / 1e3) for each in profile.key_averages()]
    totals = dict.fromkeys((*KINDS, "other"), 0.0)
    walks = list[tuple[str, int, float]]()
    for name, count, ms in rows:
        kind = next(
            (kind for kind, words in KINDS.items() if any(word in name.lower() for word in words)), "other"
        )
        totals[kind] += ms
        if kind in ("walks", "other"):
            walks.append((name[:100], count, round(ms, 2)))
    return {
        **{kind: round(ms, 1) for kind, ms in totals.items()},
        "dearest": sorted(walks, key=lambda row: -row[2])[:24],
    }


def replanned(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Cases that were measured, beside what the planner says now."""
    return {name: case | rounded(planned(CASES[name])) for name, case in found.items()}


def off_plan(found: dict[str, dict[str, float]]) -> list[str]:
    """List the values that are not as planned."""
    return [
        f"{name}: {what} {case[what]:.3g}, planned {case[f'planned_{what}']:.3g}"
        for name, case in found.items()
        for what, within in WITHIN.items()
        if f"planned_{what}" in case and abs(case[what] / case[f"planned_{what}"] - 1) > within
    ]


def table(report: dict[str, Any]) -> Iterator[str]:
    """Yield the table of a result, for a page."""
    heads = (
        "what",
        "forward and backward",
        "planned",
        "peak",
        "planned",
        "model TFLOP/s",
        "step with optimiser",
        "its peak",
    )
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
        yield row(
            (
                name,
                f"**{case['seconds']:.2f} s**",
                planned[0],
                peak,
                planned[1],
                f"{case['model_tflops']:.0f}",
                *step,
            )
        )
    peers = report["measured"].get("peers", {})
    for name, found in peers.items():
        yield row((name, f"**{found['seconds']:.2f} s**", "", f"{found['peak_gib']:.1f} GiB", "", "", "", ""))
    yield ""
    each = [*report["measured"]["cases"].values(), *peers.values()]
    commits = ", ".join(dict.fromkeys(f"`{case['commit']}`" for case in each))
    yield f"{report['hardware']['gpu']}, torch {report['versions']['torch']}, commit {commits}."
    for found in list(peers.values())[:1]:
        code = found["their_commit"][:12] or found["their_files"]
        changed = f"; replaced: {found['replaced']}" if found["replaced"] else ""
        yield f"Self-Forcing's code is `{code}`, its weights {found['weights']}{changed}."


def plot(report: dict[str, Any], path: Path) -> None:
    """Seconds against memory: what recomputing buys."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6))
    cases = {
        name.removeprefix("1.3b-"): case
        for name, case in report["measured"]["cases"].items()
        if name.startswith("1.3b") and "fp8" not in name
    }
    for prefix, label in (("", "Millstream"), ("masters-", "Millstream, with masters")):
        ours = {
            name.removeprefix("masters-"): (case["peak_gib"], case["seconds"])
            for name, case in cases.items()
            if name.startswith("masters-") == bool(prefix)
        }
        if ours:
            axes.plot(*zip(*sorted(ours.values()), strict=True), "o-", label=label)
        for name, point in ours.items():
            axes.annotate(name, point, textcoords="offset points", xytext=(6, 6))
    theirs = [(each["peak_gib"], each["seconds"]) for each in report["measured"].get("peers", {}).values()]
    if theirs:
        axes.plot(*zip(*sorted(theirs), strict=True), "s--", label="Self-Forcing's code")
    axes.set(xlabel="peak memory, GiB", ylabel="forward and backward, s", xlim=(0, None), ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def write_page() -> None:
    docs = RESULTS.parents[1] / "docs"
    path = RESULTS / "train_step.json"
    report = json.loads(path.read_text())
    report["measured"]["cases"] = replanned(
        report["measured"]["cases"]
    )  # on the page alone: results are what was measured
    write_between(docs / "training.md", "benchmarks.train_step", table(report))
    plot(report, docs / "pictures" / "train-step.png")


def main() -> None:
    parser = argparse.ArgumentParser(description="A training step's time and memory on one GPU.")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument(
        "--self-forcing",
        type=Path,
        metavar="CHECKOUT",
        help="also time Self-Forcing's own code, which is there",
    )
    parser.add_argument("--measure", metavar="CASE", help="be one of the processes that are measured")
    parser.add_argument("--kernels", action="store_true", help="also how long kernels of each kind take")
    parser.add_argument(
        "--miniature", action="store_true", help="a tiny model on any device; nothing is written"
    )
    parser.add_argument(
        "--page", action="store_true", help="write the last result into docs/training.md and measure nothing"
    )
    options = parser.parse_args()
    if options.page:
        write_page()
        return
    if options.measure:
        if options.measure in PEERS:
            found = measure_peer(options.measure, options.self_forcing, miniature=options.miniature)
        else:
            found = measure(options.measure, miniature=options.miniature, kernels=options.kernels)
        print(json.dumps(found))
        return
    flags = [flag for flag in ("--kernels", "--miniature") if getattr(options, flag.removeprefix("--"))]
    peers = list(PEERS) if options.self_forcing else []
    for name in [*options.only, *peers]:
        found = in_own_process(
            name, [*flags, *([f"--self-forcing={options.self_forcing}"] if name in PEERS else [])]
        )
        print(name, found, file=sys.stderr, flush=True)
        if "seconds" in found and not options.miniature:
            keep(name, found)


def in_own_process(name: str, flags: list[str]) -> dict[str, Any]:
    """Measure a case in its own process, and return the result or the exit status if it failed; the next case
    is measured all the same."""
    command = [sys.executable, "-m", "benchmarks.train_step", "--measure", name, *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return {"failed": done.returncode}
    found = json.loads(done.stdout.splitlines()[-1])
    return rounded(found)


def rounded(found: dict[str, Any]) -> dict[str, Any]:
    return {what: round(value, 4) if isinstance(value, float) else value for what, value in found.items()}


def keep(name: str, found: dict[str, Any]) -> None:
    """Beside the rows that were there, each with the commit it was measured at."""
    path = RESULTS / "train_step.json"
    before = json.loads(path.read_text())["measured"] if path.is_file() else {}
    rows = before.get("cases", {}) | before.get("peers", {}) | {name: found | row_origin()}
    cases = replanned({each: rows[each] for each in CASES if each in rows})
    peers = {each: rows[each] for each in PEERS if each in rows}
    asked = {
        "size": SIZE,
        "latent_frames": FRAMES,
        "frames_per_chunk": FRAMES_PER_CHUNK,
        "batch": 1,
        "precision": "bf16",
    }
    write_report("train_step", asked, {"cases": cases, "peers": peers, "off_plan": off_plan(cases)})


if __name__ == "__main__":
    main()
