"""Does fewer bits change what is learnt? Brook's teacher from nothing, three times: float32, bfloat16 and
scaled float16.

    python -m benchmarks.train_precision                # the stage as its recipe has it, for a GPU: a few minutes
    python -m benchmarks.train_precision --steps 600 --clips 11500
    python -m benchmarks.train_precision --page         # writes the last result into docs/training.md

The stage's model, batch, rates, optimisers and losses are those of `recipes/brook.toml`; clips are rendered
as for a run, fewer of them, through the VAE that ships. Weights are float32 and start alike; every step draws
the same clips and the same noise. Losses are averaged over neighbouring steps, and two curves differ by their
distance in percent of float32's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from benchmarks.pages import row, write_between
from benchmarks.report import RESULTS, write_report
from millstream.core.presets import find_model
from millstream.engine.device_choice import choose_device
from millstream.models.brook.bundle import load_bundle
from millstream.models.brook.files import FINGERPRINT, PATH
from millstream.models.brook.text import WordTokenizer
from millstream.train.brook import new_pair
from millstream.train.data.captions import WORDS
from millstream.train.loop import keyed_generator
from millstream.train.methods.flow import FlowMethod, TextAndDiT
from millstream.train.optimise import Optimisers
from millstream.train.options import FlowOptions
from millstream.train.parallel.precision import LossScale, Precision
from millstream.train.plan import RunPlan, StagePlan, read_plan
from millstream.train.pool import LatentPool
from millstream.train.pool_rendering import render_pools
from millstream.train.recipe import RECIPES

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16")
AT_MOST = 2.0
"""Percent."""
NEIGHBOURS = 25
"""Steps that a point of a smoothed curve is the mean of."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One precision's run."""

    losses: list[float]
    seconds: float
    skipped: int
    """Steps whose gradients were no numbers."""
    loss_scale: float


def latents(plan: RunPlan, device: torch.device) -> LatentPool:
    spec = find_model(plan.model)
    _, vae, _ = load_bundle(PATH, spec, device=device, dtype=torch.float32, fingerprint=FINGERPRINT)
    return render_pools(plan, vae, WordTokenizer(WORDS), spec, device)[0]


def learn(
    pair: TextAndDiT, pool: LatentPool, stage: StagePlan, precision: Precision, steps: int, *, seed: int = 0
) -> Curve:
    """The first so many steps of a stage."""
    device = pool.latents_KFCYX.device
    options = stage.choose(FlowOptions)
    method = FlowMethod(pair, pool, batch=stage.batch, options=options, precision=precision)
    optimisers = Optimisers(pair, stage)
    scale = LossScale() if precision == "fp16" else None
    losses = list[float]()
    begun = time.perf_counter()
    for step in range(steps):
        (loss,) = method.turns[0].losses(keyed_generator(device, seed, "teacher.student", step)).values()
        if follow(loss, pair, scale):
            optimisers.step(step)
        pair.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    skipped, value = (scale.skipped, scale.value) if scale else (0, 1.0)
    return Curve(losses, time.perf_counter() - begun, skipped, value)


def follow(loss: torch.Tensor, module: nn.Module, scale: LossScale | None) -> bool:
    """Leave the loss's gradients. Whether they may be followed."""
    if scale is None:
        loss.backward()
        return True
    by = scale.value
    (loss * by).backward()
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    torch._foreach_div_(gradients, by)
    return scale.may_step(nn.utils.get_total_norm(gradients).square())


def smoothed(losses: list[float]) -> list[float]:
    """Means of so many neighbours, or of as many as there are."""
    width = min(NEIGHBOURS, len(losses))
    return [sum(losses[start : start + width]) / width for start in range(len(losses) - width + 1)]


def differences(found: Curve, expected: Curve) -> dict[str, float]:
    """In percent: the mean distance of two smoothed curves, and the largest."""
    pairs = zip(smoothed(found.losses), smoothed(expected.losses), strict=True)
    percent = [100 * abs(one - other) / other for one, other in pairs]
    return {"mean_percent": sum(percent) / len(percent), "most_percent": max(percent)}


def compared(curves: Mapping[Precision, Curve]) -> dict[str, Any]:
    runs = {
        precision: differences(curve, curves["fp32"]) | asdict(curve) for precision, curve in curves.items()
    }
    missed = [precision for precision, found in runs.items() if not found["most_percent"] <= AT_MOST]
    return {"at_most_percent": AT_MOST, "missed": missed, "runs": runs}


def measure(device: torch.device, steps: int, clips: int) -> dict[str, Any]:
    """Train Brook's teacher on so many clips in every precision, and compare the curves."""
    plan = read_plan(RECIPES / "brook.toml")
    share = clips / (plan.pool.clips + plan.pool.switches)
    counts = {"clips": round(share * plan.pool.clips), "switches": round(share * plan.pool.switches)}
    pool = latents(replace(plan, pool=replace(plan.pool, **counts)), device)
    curves = dict[Precision, Curve]()
    for precision in PRECISIONS:
        torch.manual_seed(plan.seed)
        pair = new_pair(find_model(plan.model)).to(device)
        curves[precision] = learn(pair, pool, plan.stage("teacher"), precision, steps, seed=plan.seed)
        print(f"{precision}: {curves[precision].seconds:.0f} s", file=sys.stderr, flush=True)
    return counts | compared(curves)


def table(report: dict[str, Any]) -> Iterator[str]:
    """Yield the table of a result, for a page."""
    about = report["configuration"]
    yield row(("precision", "last loss", "from fp32, mean", "at most", "skipped steps", "a step"))
    yield row(["---"] * 6)
    for name, found in report["measured"]["runs"].items():
        last = smoothed(found["losses"])[-1]
        per_step = 1000 * found["seconds"] / about["steps"]
        percent = (f"{found[key]:.2f}%" for key in ("mean_percent", "most_percent"))
        yield row((name, f"{last:.4f}", *percent, str(found["skipped"]), f"{per_step:.0f} ms"))
    yield ""
    where = report["hardware"].get("gpu") or report["hardware"]["cpu"] or "ARM CPU"
    yield (
        f"{about['steps']} steps; {where}, torch {report['versions']['torch']}, commit `{report['commit']}`."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--clips", type=int, default=2000, help="Rendered, of the recipe's 11,500.")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--page", action="store_true", help="write the last result into docs/training.md and train nothing"
    )
    options = parser.parse_args()
    if options.page:
        report = json.loads((RESULTS / "train_precision.json").read_text())
        write_between(
            Path(__file__).parents[1] / "docs" / "training.md", "benchmarks.train_precision", table(report)
        )
        return
    found = measure(choose_device(options.device), options.steps, options.clips)
    write_report(
        "train_precision", {"stage": "teacher", "steps": options.steps, "smoothed_over": NEIGHBOURS}, found
    )
    sys.exit(f"further than {AT_MOST:g}% from fp32: {', '.join(found['missed'])}" if found["missed"] else 0)


if __name__ == "__main__":
    main()
