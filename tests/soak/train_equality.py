"""Compare losses and weights of every strategy to share out training with one process on the same batch.

    python -m tests.soak.train_equality
    python -m tests.soak.train_equality --models tiny --only "ZeRO 3" FSDP2 --json
    python -m tests.soak.train_equality --missing      # resumes: only cases without a row in the last result

Real processes over gloo, float32, 50 steps of diffusion forcing with AdamW and clipping. A row's difference
is the largest of three: that of any loss, relative to it; that of the gradients' norm before clipping,
relative to it (AdamW and clipping cannot tell gradients from twice as large ones); and that of any parameter,
relative to its norm. Cases that are not measured again keep their row and its commit: models can be run one
at a time, and every row is written as soon as it is measured.
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

from millstream.commands.report import row_origin
from millstream.core.config import ActionsConfig, ConditionsConfig, DiTConfig
from millstream.core.presets import find_model
from millstream.models.conditions.injectors import Injectors
from millstream.models.dit import CausalDiT
from millstream.train.parallel.checkpoint import Checkpoints
from millstream.train.parallel.groups import create_training_groups
from millstream.train.parallel.learner import make_learner
from millstream.train.parallel.plan import ParallelPlan
from millstream.train.parallel.task import FlowRows, StepOptions, TrainingTask
from millstream.train.sequence import ChunkedSequence, diffusion_forced
from tests.dist.ranks import run_ranks
from tests.soak.report import RESULTS, write_report

CHUNKS = 3
FRAMES_PER_CHUNK = 2
WINDOW = 4
LATENT_SIZE = (8, 8)
BATCH = 8
STEPS = 50
AT_MOST = 1e-5
OPTIONS = StepOptions(grad_clip=0.5)
KEYS = ConditionsConfig(actions=ActionsConfig(keys=("a", "w")))
SAVE_EVERY = 2
RESULT = RESULTS / "train_equality.json"
_TINY = DiTConfig(
    layers=4, width=48, heads=4, ffn=96, channels=4, text_width=16, text_tokens=4, time_features=32
)
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
    norms: list[float]
    """Gradient norm of each step, over all parameters, before clipping."""


def train(
    rank: int,
    model: str,
    plan: ParallelPlan,
    steps: int,
    folder: Path | None = None,
    options: StepOptions = OPTIONS,
    *,
    steered: bool = False,
) -> Trained:
    """On one rank of a process group, or alone. With a folder it goes on where that was left, and keeps every
    other step. A model that is steered learns what keys do as well."""
    config = MODELS[model]
    device = torch.device("cpu")
    plan.check(config, BATCH)
    torch.manual_seed(0)
    dit = CausalDiT(config)
    sequence = ChunkedSequence(
        diffusion_forced(CHUNKS, FRAMES_PER_CHUNK, WINDOW), config, LATENT_SIZE, device
    )
    learner = make_learner(
        TrainingTask(
            dit=dit,
            sequence=sequence,
            latent_size=LATENT_SIZE,
            loss=mean_square,
            plan=plan,
            groups=create_training_groups(plan, device),
            options=options,
            injectors=Injectors(KEYS, config) if steered else None,
        )
    )
    checkpoints = Checkpoints(folder, learner) if folder is not None else None
    done = checkpoints.load(checkpoints.newest) if checkpoints and checkpoints.newest else 0
    losses = list[float]()
    norms = list[float]()
    for step, rows in enumerate(batches(config, done, steps, steered=steered), start=done + 1):
        learnt = learner.learn(learner.mine(rows))
        losses.append(float(learnt.loss))
        norms.append(float(learnt.norm))
        if checkpoints and step % SAVE_EVERY == 0:
            checkpoints.save(step)
    if checkpoints:
        checkpoints.finish()
    return Trained(losses, learner.weights(), norms)


def mean_square(flow: Tensor, target: Tensor) -> Tensor:
    return (flow - target).square().mean()


def batches(config: DiTConfig, done: int, steps: int, *, steered: bool = False) -> Iterator[FlowRows]:
    """Yield batches that are the same for any number of ranks and any first step; each rank takes its rows of
    the whole."""
    for step in range(done, steps):
        generator = torch.Generator().manual_seed(step)
        frames = CHUNKS * FRAMES_PER_CHUNK
        clean, noise = torch.randn(2, BATCH, frames, config.channels, *LATENT_SIZE, generator=generator)
        clean = clean.cumsum(dim=1) / frames**0.5  # something to learn: frames are like those before them
        level = torch.rand(BATCH, CHUNKS, generator=generator).repeat_interleave(FRAMES_PER_CHUNK, dim=1)
        mixed = torch.lerp(clean, noise, level[..., None, None, None])
        text = torch.randn(BATCH, config.text_tokens, config.text_width, generator=generator)
        held = torch.rand(BATCH, frames, 2, generator=generator).round()
        actions = held if steered else None
        yield FlowRows(mixed, 1000 * level, text, noise - clean, actions_BFA=actions)


def difference(found: Trained, expected: Trained) -> float:
    assert found.weights.keys() == expected.weights.keys(), set(found.weights) ^ set(expected.weights)
    pairs = zip([*found.losses, *found.norms], [*expected.losses, *expected.norms], strict=True)
    numbers = [abs(one - other) / abs(other) for one, other in pairs]
    weights = [_relative(found.weights[name], whole) for name, whole in expected.weights.items()]
    return max(*numbers, *weights)


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def rows(wanted: dict[str, list[str]], steps: int) -> Iterator[dict[str, Any]]:
    """Yield the row of each of these strategies of each model."""
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
                **row_origin(),
                "first_loss": alone.losses[0],
                "last_loss": found.losses[-1],
            }


def merged(found: Iterable[dict[str, Any]], before: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of now in the place of those before them."""
    by_name = {(each["model"], each["strategy"]): each for rows in (before, found) for each in rows}
    return [by_name[key] for key in itertools.product(MODELS, STRATEGIES) if key in by_name]


def rows_before(about: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the last result's rows if it has the same configuration and torch version; otherwise none."""
    last = json.loads(RESULT.read_text())
    is_alike = last["configuration"] == about and last["versions"]["torch"] == str(torch.__version__)
    return last["measured"]["rows"] if is_alike else []


def chosen(models: list[str], only: list[str], without: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Strategies by model, those of them that have one of these words in their name, less those with a
    row."""
    have = {(each["model"], each["strategy"]) for each in without}
    wanted = {
        model: [
            name
            for name in STRATEGIES
            if (model, name) not in have and (not only or any(word in name for word in only))
        ]
        for model in models
    }
    return {model: names for model, names in wanted.items() if names}


def names_of_missed(found: Iterable[dict[str, Any]]) -> list[str]:
    return [f"{each['model']}, {each['strategy']}" for each in found if not each["difference"] <= AT_MOST]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=["tiny", "brook-size"], choices=list(MODELS))
    parser.add_argument("--only", nargs="*", default=[], help="strategies whose name has one of these in it")
    parser.add_argument("--missing", action="store_true", help="only what has no row in the last result")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help="nothing is written of more or fewer than are asked for"
    )
    parser.add_argument("--json", action="store_true", help="a line for each strategy")
    options = parser.parse_args()
    frames = CHUNKS * FRAMES_PER_CHUNK
    about: dict[str, Any] = {
        "steps": options.steps,
        "batch": BATCH,
        "frames": frames,
        "window": WINDOW,
        "dtype": "float32",
    }
    about["compared"] = ["losses", "norms", "weights"]
    before = rows_before(about)
    found = list[dict[str, Any]]()
    for each in rows(chosen(options.models, options.only, before if options.missing else []), options.steps):
        found.append(each)
        line = (
            json.dumps(each)
            if options.json
            else f"{each['model']:12}{each['strategy']:34}{each['difference']:.1e}"
        )
        print(line, file=sys.stdout if options.json else sys.stderr, flush=True)
        if options.steps == STEPS:
            kept = merged(found, before)
            measured = {"at_most": AT_MOST, "missed": names_of_missed(kept), "rows": kept}
            write_report("train_equality", about, measured, shown=False)
    missed = names_of_missed(found)
    sys.exit(f"differs by more than {AT_MOST:g}: {'; '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
