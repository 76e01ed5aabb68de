"""Live bytes of a training step on CPU ranks at its fullest moment, by every way to recompute and to share,
and the plan's.

    python -m benchmarks.train_memory
    python -m benchmarks.train_memory --only fsdp       # the other rows stay as they were, with the commit they are of
    python -m benchmarks.train_memory --page            # writes the last result into docs/training.md

Real processes over gloo, two steps of diffusion forcing with AdamW; the second is weighed. Every tensor that
an operation makes counts until it dies, and beside them the weights and what the optimiser keeps. All of it
is float32, but with *masters* weights, gradients and activations are bfloat16 beside float32 weights that
learn. What is planned is `learning_peak` of `planner/training.py`.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from benchmarks.pages import row, write_between
from benchmarks.report import RESULTS, write_report
from millstream.commands.report import row_origin
from millstream.core.config import DiTConfig, Recompute
from millstream.mesh.local_ranks import on_ranks
from millstream.models.adapters import add_adapters
from millstream.models.dit import CausalDiT
from millstream.models.live_bytes import LiveBytes
from millstream.planner.bubbles import TRAINED, held_micro_batches
from millstream.planner.training import (
    LearningWork,
    fullest_rank,
    gathered_parameters,
    learner_state,
    learning_peak,
)
from millstream.train.parallel.groups import create_training_groups
from millstream.train.parallel.learner import Learner, PipelineLearner, ZeroLearner, make_learner
from millstream.train.parallel.optimisers.choice import OptimiserChoice
from millstream.train.parallel.optimisers.masters import Masters
from millstream.train.parallel.plan import ParallelPlan
from millstream.train.parallel.task import FlowRows, StepOptions, TrainingTask
from millstream.train.sequence import ChunkedSequence, diffusion_forced

WITHIN = 0.05
RESULT = RESULTS / "train_memory.json"
CONFIG = DiTConfig(
    layers=6, width=48, heads=2, ffn=192, channels=4, text_width=16, text_tokens=4, time_features=32
)
UNSEEN = DiTConfig(
    layers=10, width=80, heads=4, ffn=240, channels=6, text_width=24, text_tokens=6, time_features=32
)
"""A shape that no formula was written with in view."""
SHAPES = {"seen": CONFIG, "unseen": UNSEEN}
CASES: tuple[tuple[str, Recompute], ...] = tuple(itertools.product(SHAPES, get_args(Recompute)))
CHUNKS = 3
FRAMES_PER_CHUNK = 2
WINDOW = 4
LATENT_SIZE = (16, 16)


class MemoryCase(NamedTuple):
    plan: ParallelPlan = ParallelPlan()
    lora_rank: int = 0
    masters: bool = False

    @property
    def learning_bytes(self) -> int:
        return 2 if self.masters else 4


WAYS = {
    "one process": MemoryCase(),
    "own data parallel": MemoryCase(ParallelPlan(dp=2)),
    "DDP": MemoryCase(ParallelPlan(dp=2, data="ddp")),
    "ZeRO 1": MemoryCase(ParallelPlan(dp=2, data="zero1")),
    "ZeRO 2": MemoryCase(ParallelPlan(dp=2, data="zero2")),
    "ZeRO 3": MemoryCase(ParallelPlan(dp=2, data="zero3")),
    "FSDP2": MemoryCase(ParallelPlan(dp=2, data="fsdp")),
    "HSDP": MemoryCase(ParallelPlan(dp=4, data="hsdp", shards=2)),
    "tensor parallel": MemoryCase(ParallelPlan(tp=2)),
    "context parallel": MemoryCase(ParallelPlan(cp=2)),
    "pipeline, 1F1B": MemoryCase(ParallelPlan(pp=2, micro_batches=3)),
    "LoRA": MemoryCase(lora_rank=2),
    "masters": MemoryCase(masters=True),
    "masters, own data parallel": MemoryCase(ParallelPlan(dp=2), masters=True),
    "masters, DDP": MemoryCase(ParallelPlan(dp=2, data="ddp"), masters=True),
    "masters, ZeRO 1": MemoryCase(ParallelPlan(dp=2, data="zero1"), masters=True),
    "masters, ZeRO 2": MemoryCase(ParallelPlan(dp=2, data="zero2"), masters=True),
    "masters, ZeRO 3": MemoryCase(ParallelPlan(dp=2, data="zero3"), masters=True),
    "masters, tensor parallel": MemoryCase(ParallelPlan(tp=2), masters=True),
    "masters, context parallel": MemoryCase(ParallelPlan(cp=2), masters=True),
    "masters, pipeline, 1F1B": MemoryCase(ParallelPlan(pp=2, micro_batches=3), masters=True),
}


def live_bytes(rank: int, way: MemoryCase, recompute: Recompute, config: DiTConfig = CONFIG) -> int:
    """Return the live bytes of a rank at the peak of its second step."""
    device = torch.device("cpu")
    plan = way.plan
    rows = way.plan.micro_batches
    frames = CHUNKS * FRAMES_PER_CHUNK
    torch.manual_seed(0)
    dit = CausalDiT(config).to(torch.bfloat16 if way.masters else torch.float32)
    if way.lora_rank:
        dit.requires_grad_(requires_grad=False)
        add_adapters(dit, rank=way.lora_rank, alpha=1.0, parts=("self_attn", "cross_attn", "ffn"))
    learner = make_learner(
        TrainingTask(
            dit=dit,
            sequence=ChunkedSequence(
                diffusion_forced(CHUNKS, FRAMES_PER_CHUNK, WINDOW), config, LATENT_SIZE, device
            ),
            latent_size=LATENT_SIZE,
            loss=mean_square,
            plan=plan,
            groups=create_training_groups(plan, device),
            options=StepOptions(
                recompute=recompute,
                precision="bf16" if way.masters else "fp32",
                optimiser=OptimiserChoice(masters=way.masters),
            ),
        )
    )
    latents = torch.randn(rows, frames, config.channels, *LATENT_SIZE)
    text = torch.randn(rows, config.text_tokens, config.text_width)
    batch = FlowRows(latents, 1000 * torch.rand(rows, frames), text, torch.randn_like(latents))
    learner.learn(batch)
    always = bytes_of(lasting(learner, dit))
    gc.collect()
    with LiveBytes("cpu") as live:
        learner.learn(batch)
    return always + live.peak


def lasting(learner: Learner, dit: CausalDiT) -> list[Tensor]:
    """Weights and what the optimiser keeps."""
    kept = [value for state in learner.optimiser.state.values() for value in state.values()]
    if isinstance(learner.optimiser, Masters):
        kept += learner.optimiser.masters.values()
    mine = [unit.mine for unit in learner._zero.units] if isinstance(learner, ZeroLearner) else []
    held = learner._pipeline.module if isinstance(learner, PipelineLearner) else dit
    return [*held.parameters(), *mine, *kept]


def bytes_of(tensors: list[Tensor]) -> int:
    """Return the bytes of the tensors' storages, each counted once."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in local}
    return sum(storages.values())


def planned_bytes(way: MemoryCase, recompute: Recompute, config: DiTConfig = CONFIG) -> float:
    plan = way.plan
    tokens = CHUNKS * FRAMES_PER_CHUNK * LATENT_SIZE[0] * LATENT_SIZE[1] // config.patch**2
    shards = plan.shards or plan.dp
    whole = fullest_rank(config, tp=plan.tp, pp=plan.pp)
    learns = fullest_rank(config, tp=plan.tp, pp=plan.pp, lora_rank=way.lora_rank) if way.lora_rank else whole
    work = LearningWork(
        dit=replace(config, layers=config.layers // plan.pp),
        tokens=tokens // plan.cp,
        keys=tokens,
        recompute=recompute,
        is_frozen=way.lora_rank > 0,
        is_compiled=False,
        tp=plan.tp,
        passes=held_micro_batches(TRAINED[plan.schedule], plan.pp, plan.micro_batches) if plan.pp > 1 else 1,
        gathered=gathered_parameters(config, plan.data, shards),
        summed=plan.summed_at_once(learns, way.learning_bytes),
        learning_bytes=way.learning_bytes,
    )
    state = learner_state(
        learns,
        0 if learns == whole else whole,
        data=plan.data,
        ranks=shards,
        learning_bytes=way.learning_bytes,
        masters=way.masters,
    )
    return learning_peak(work, state, accumulates=plan.keeps_gradients)


def mean_square(flow: Tensor, target: Tensor) -> Tensor:
    return (flow - target).square().mean()


def weigh(rank: int, world: int, way: MemoryCase) -> list[int]:
    """Return the live bytes of every shape and way to recompute, in one start of the ranks."""
    return [live_bytes(rank, way, recompute, SHAPES[shape]) for shape, recompute in CASES]


def rows(only: list[str]) -> Iterator[dict[str, Any]]:
    for name, way in WAYS.items():
        if only and not any(word.lower() in name.lower() for word in only):
            continue
        found = on_ranks(weigh, way.plan.world_size, way, timeout_s=3600.0)[
            0
        ]  # of a pipeline the first holds most
        for (shape, recompute), held in zip(CASES, found, strict=True):
            yield beside_plan(
                {"plan": name, "shape": shape, "recompute": recompute, "live_bytes": held} | row_origin()
            )


def beside_plan(measured: dict[str, Any]) -> dict[str, Any]:
    """Add the planner's present prediction to a row, whenever it was measured."""
    planned = planned_bytes(WAYS[measured["plan"]], measured["recompute"], SHAPES[measured["shape"]])
    return measured | {"planned_bytes": round(planned), "difference": measured["live_bytes"] / planned - 1}


def rows_before(report: dict[str, Any], about: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an earlier result whose configuration is the present one; otherwise none."""
    is_alike = report["configuration"].items() >= about.items()
    return (
        [beside_plan({"commit": report["commit"]} | each) for each in report["measured"]["rows"]]
        if is_alike
        else []
    )


def merged(found: list[dict[str, Any]], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace earlier rows by those just measured."""
    by_name = {(each["plan"], each["shape"], each["recompute"]): each for each in (*before, *found)}
    keys = ((name, *case) for name in WAYS for case in CASES)
    return [by_name[key] for key in keys if key in by_name]


def table(report: dict[str, Any]) -> Iterator[str]:
    """Yield the table of a result, for a page: in each cell, the shape furthest from its plan."""
    found = report["measured"]["rows"]
    ways = get_args(Recompute)
    furthest = dict[tuple[str, str], float]()
    for each in found:
        key = each["plan"], each["recompute"]
        furthest[key] = max(each["difference"], furthest.get(key, 0.0), key=abs)
    yield row(("live bytes beside the plan", *ways))
    yield row(["---"] * (1 + len(ways)))
    for name in dict.fromkeys(each["plan"] for each in found):
        yield row((name, *(f"{furthest[name, how]:+.1%}" if (name, how) in furthest else "" for how in ways)))
    yield ""
    commits = ", ".join(f"`{each}`" for each in dict.fromkeys(each["commit"] for each in found))
    yield f"{report['hardware']['cpu'] or 'ARM CPU'}, torch {report['versions']['torch']}, commit {commits}."


def names_of_missed(found: list[dict[str, Any]]) -> list[str]:
    return [
        f"{each['plan']}, {each['shape']}, {each['recompute']}"
        for each in found
        if abs(each["difference"]) > WITHIN
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="plans whose name has one of these in it")
    parser.add_argument(
        "--page", action="store_true", help="write the last result into docs/training.md and weigh nothing"
    )
    options = parser.parse_args()
    report = json.loads(RESULT.read_text())
    if options.page:
        write_between(RESULTS.parents[1] / "docs" / "training.md", "benchmarks.train_memory", table(report))
        return
    dits = {name: str(config) for name, config in SHAPES.items()}
    about = {"dit": dits, "latent_size": list(LATENT_SIZE), "frames": CHUNKS * FRAMES_PER_CHUNK}
    before = rows_before(report, about)
    found = list[dict[str, Any]]()
    for each in rows(options.only):
        found.append(each)
        print(
            f"{each['plan']:28}{each['shape']:8}{each['recompute']:12}{each['live_bytes']:12}{each['difference']:+.1%}",
            file=sys.stderr,
            flush=True,
        )
        kept = merged(found, before)
        measured = {"within": WITHIN, "missed": names_of_missed(kept), "rows": kept}
        write_report("train_memory", about, measured, shown=False)
    missed = names_of_missed(found)
    sys.exit(f"off the plan by more than {WITHIN:.0%}: {'; '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
