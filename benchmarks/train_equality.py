"""Whether it matters how training is shared out: losses and weights of every strategy against one process with the same batch.

    python -m benchmarks.train_equality
    python -m benchmarks.train_equality --models tiny --only "ZeRO 3" FSDP2 --json
    python -m benchmarks.train_equality --missing      # what has no row in the last result: it goes on where it was stopped
    python -m benchmarks.train_equality --page         # writes the last result into docs/training.md

Real processes over gloo, float32, 50 steps of diffusion forcing with AdamW and clipping. A row's difference is the largest of
two: that of any loss, relative to it, and that of any parameter, relative to its norm. What is not measured again keeps the row
that it had, with the commit it was of: models can be run one at a time, and every row is written when it is there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.pages import row, write_between
from benchmarks.report import RESULTS, write_report
from millstream.commands.report import current_commit
from millstream.core.config import DiTConfig
from millstream.core.presets import find_model
from millstream.models.dit import CausalDiT
from millstream.parallel.training.checkpoint import Checkpoints
from millstream.parallel.training.groups import create_training_groups
from millstream.parallel.training.learner import make_learner
from millstream.parallel.training.plan import ParallelPlan
from millstream.parallel.training.task import FlowRows, StepOptions, TrainingTask
from millstream.trainer.sequence import ChunkedSequence, diffusion_forced
from tests.dist.ranks import run_ranks

CHUNKS, FRAMES_PER_CHUNK, WINDOW, LATENT_SIZE, BATCH, STEPS = 3, 2, 4, (8, 8), 8, 50
AT_MOST = 1e-5
OPTIONS = StepOptions(clip=0.5)
SAVE_EVERY = 2
RESULT = RESULTS / "train_equality.json"
_TINY = DiTConfig(layers=4, width=48, heads=4, ffn=96, channels=4, text_width=16, text_tokens=4, time_features=32)
MODELS = {
    "two-blocks": replace(_TINY, layers=2),
    "tiny": _TINY,
    "brook-size": find_model("brook").dit,
}
STRATEGIES = {
    "own data parallel": ParallelPlan(dp=4),
    "own data parallel, accumulated": ParallelPlan(dp=2, micro_batches=2),
    "DDP": ParallelPlan(dp=4, data="ddp"),
    "ZeRO 1": ParallelPlan(dp=4, data="zero1"),
    "ZeRO 2": ParallelPlan(dp=4, data="zero2"),
    "ZeRO 3": ParallelPlan(dp=4, data="zero3"),
    "ZeRO 3, accumulated": ParallelPlan(dp=2, data="zero3", micro_batches=2),
    "FSDP2": ParallelPlan(dp=4, data="fsdp"),
    "FSDP2, accumulated": ParallelPlan(dp=2, data="fsdp", micro_batches=2),
    "HSDP": ParallelPlan(dp=4, data="hsdp", shards=2),
    "tensor parallel": ParallelPlan(tp=4),
    "context parallel": ParallelPlan(cp=4),
    "pipeline, GPipe": ParallelPlan(pp=2, schedule="gpipe", micro_batches=4),
    "pipeline, 1F1B": ParallelPlan(pp=2, schedule="1f1b", micro_batches=4),
    "pipeline, interleaved": ParallelPlan(pp=2, schedule="interleaved", micro_batches=4),
    "pipeline, zero-bubble": ParallelPlan(pp=2, schedule="zero-bubble", micro_batches=4),
    "pipeline, ZB-V": ParallelPlan(pp=2, schedule="zbv", micro_batches=4),
    "2D, data x tensor": ParallelPlan(dp=2, tp=2),
    "2D, data x context": ParallelPlan(dp=2, cp=2),
    "2D, ZeRO 3 x context": ParallelPlan(dp=2, cp=2, data="zero3"),
    "2D, FSDP2 x tensor": ParallelPlan(dp=2, tp=2, data="fsdp"),
    "2D, FSDP2 x context": ParallelPlan(dp=2, cp=2, data="fsdp"),
    "2D, pipeline x data": ParallelPlan(pp=2, dp=2, schedule="1f1b", micro_batches=2),
    "3D, data x context x tensor": ParallelPlan(dp=2, cp=2, tp=2),
    "3D, FSDP2 x context x tensor": ParallelPlan(dp=2, cp=2, tp=2, data="fsdp"),
    "3D, pipeline x data x tensor": ParallelPlan(pp=2, dp=2, tp=2, schedule="1f1b", micro_batches=2),
}


class Trained(NamedTuple):
    losses: list[float]
    weights: dict[str, Tensor]


def train(
    rank: int, model: str, plan: ParallelPlan, steps: int, folder: Path | None = None, options: StepOptions = OPTIONS
) -> Trained:
    """On one rank of a process group, or alone. With a folder it goes on where that was left, and keeps every other step."""
    config, device = MODELS[model], torch.device("cpu")
    plan.check(config, BATCH)
    torch.manual_seed(0)
    dit = CausalDiT(config)
    sequence = ChunkedSequence(diffusion_forced(CHUNKS, FRAMES_PER_CHUNK, WINDOW), config, LATENT_SIZE, device)
    learner = make_learner(
        TrainingTask(
            dit=dit,
            sequence=sequence,
            latent_size=LATENT_SIZE,
            loss=mean_square,
            plan=plan,
            groups=create_training_groups(plan, device),
            options=options,
        )
    )
    checkpoints = Checkpoints(folder, learner) if folder is not None else None
    done = checkpoints.load(checkpoints.newest) if checkpoints and checkpoints.newest else 0
    losses = list[float]()
    for step, rows in enumerate(batches(config, done, steps), start=done + 1):
        losses.append(float(learner.learn(learner.mine(rows)).loss))
        if checkpoints and step % SAVE_EVERY == 0:
            checkpoints.save(step)
    if checkpoints:
        checkpoints.finish()
    return Trained(losses, learner.weights())


def mean_square(flow: Tensor, target: Tensor) -> Tensor:
    return (flow - target).square().mean()


def batches(config: DiTConfig, done: int, steps: int) -> Iterator[FlowRows]:
    """The same whatever the number of ranks, each of which takes its rows of the whole, and wherever one begins."""
    for step in range(done, steps):
        generator = torch.Generator().manual_seed(step)
        frames = CHUNKS * FRAMES_PER_CHUNK
        clean, noise = torch.randn(2, BATCH, frames, config.channels, *LATENT_SIZE, generator=generator)
        clean = clean.cumsum(dim=1) / frames**0.5  # something to learn: frames are like those before them
        level = torch.rand(BATCH, CHUNKS, generator=generator).repeat_interleave(FRAMES_PER_CHUNK, dim=1)
        mixed = torch.lerp(clean, noise, level[..., None, None, None])
        text = torch.randn(BATCH, config.text_tokens, config.text_width, generator=generator)
        yield FlowRows(mixed, 1000 * level, text, noise - clean)


def difference(found: Trained, expected: Trained) -> float:
    assert found.weights.keys() == expected.weights.keys(), set(found.weights) ^ set(expected.weights)
    losses = [abs(one - other) / abs(other) for one, other in zip(found.losses, expected.losses, strict=True)]
    weights = [_relative(found.weights[name], whole) for name, whole in expected.weights.items()]
    return max(*losses, *weights)


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def rows(wanted: dict[str, list[str]], steps: int) -> Iterator[dict[str, Any]]:
    """Of these strategies of each model."""
    for model, strategies in wanted.items():
        alone = train(0, model, ParallelPlan(), steps)
        for name in strategies:
            plan = STRATEGIES[name]
            found = run_ranks(train, plan.world_size, model, plan, steps, timeout_s=3600.0)[0]
            yield {
                "model": model,
                "strategy": name,
                "ranks": plan.world_size,
                "difference": difference(found, alone),
                "commit": current_commit(),
                "first_loss": alone.losses[0],
                "last_loss": found.losses[-1],
            }


def merged(found: Iterable[dict[str, Any]], before: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of now in the place of those before them."""
    by_name = {(each["model"], each["strategy"]): each for rows in (before, found) for each in rows}
    return [by_name[key] for key in itertools.product(MODELS, STRATEGIES) if key in by_name]


def table(report: dict[str, Any]) -> Iterator[str]:
    """Of a result, for a page."""
    found = report["measured"]["rows"]
    models = list(dict.fromkeys(each["model"] for each in found))
    yield row(("strategy", "ranks", *models))
    yield row(["---"] * (2 + len(models)))
    by_name = {(each["strategy"], each["model"]): each for each in found}
    for name in dict.fromkeys(each["strategy"] for each in found):
        differences = (f"{by_name[name, model]['difference']:.1e}" if (name, model) in by_name else "" for model in models)
        yield row((name, str(STRATEGIES[name].world_size), *differences))
    yield ""
    commits = ", ".join(f"`{each}`" for each in dict.fromkeys(each["commit"] for each in found))
    yield f"{report['hardware']['cpu'] or 'ARM CPU'}, torch {report['versions']['torch']}, commit {commits}."


def rows_before(about: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the last result, where they were measured alike, by the same torch."""
    last = json.loads(RESULT.read_text())
    is_alike = last["configuration"] == about and last["versions"]["torch"] == str(torch.__version__)
    return last["measured"]["rows"] if is_alike else []


def chosen(models: list[str], only: list[str], without: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Strategies by model, those of them that have one of these words in their name, less those with a row."""
    have = {(each["model"], each["strategy"]) for each in without}
    wanted = {
        model: [name for name in STRATEGIES if (model, name) not in have and (not only or any(word in name for word in only))]
        for model in models
    }
    return {model: names for model, names in wanted.items() if names}


def names_of_missed(found: Iterable[dict[str, Any]]) -> list[str]:
    return [f"{each['model']}, {each['strategy']}" for each in found if not each["difference"] <= AT_MOST]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["tiny", "brook-size"], choices=list(MODELS))
    parser.add_argument("--only", nargs="*", default=[], help="strategies whose name has one of these in it")
    parser.add_argument("--missing", action="store_true", help="only what has no row in the last result")
    parser.add_argument("--steps", type=int, default=STEPS, help="nothing is written of more or fewer than are asked for")
    parser.add_argument("--json", action="store_true", help="a line for each strategy")
    parser.add_argument("--page", action="store_true", help="write the last result into docs/training.md and train nothing")
    options = parser.parse_args()
    if options.page:
        write_between(
            RESULTS.parents[1] / "docs" / "training.md", "benchmarks.train_equality", table(json.loads(RESULT.read_text()))
        )
        return
    frames = CHUNKS * FRAMES_PER_CHUNK
    about = {"steps": options.steps, "batch": BATCH, "frames": frames, "window": WINDOW, "dtype": "float32"}
    before = rows_before(about)
    found = list[dict[str, Any]]()
    for each in rows(chosen(options.models, options.only, before if options.missing else []), options.steps):
        found.append(each)
        line = json.dumps(each) if options.json else f"{each['model']:12}{each['strategy']:34}{each['difference']:.1e}"
        print(line, file=sys.stdout if options.json else sys.stderr, flush=True)
        if options.steps == STEPS:
            kept = merged(found, before)
            measured = {"at_most": AT_MOST, "missed": names_of_missed(kept), "rows": kept}
            write_report("train_equality", about, measured, shown=False)
    missed = names_of_missed(found)
    sys.exit(f"differs by more than {AT_MOST:g}: {'; '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
