"""Why each stage of Brook's training is there: the same student trained without one of them, on three seeds.

    python -m benchmarks.ablation --run out/brook

Starts from the VAE, the judge, the latents and the teacher of a finished run. Every variant is judged by how well it keeps to
its prompts as a stream goes on:

teacher forcing      few steps learnt with clean frames of real clips as context
diffusion forcing    the same with noisy ones
self-forcing         the first, then on the student's own streams
no initialisation    self-forcing straight from the teacher
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from msgspec.structs import replace

from benchmarks.report import write_report
from millstream.runtime.engine import Engine, choose_device
from millstream.trainer.brook import BrookRun
from millstream.trainer.evaluate.adherence import judge_prompts
from millstream.trainer.evaluate.classifier import load_classifier
from millstream.trainer.plan import RECIPES, RunPlan, StagePlan, read_plan

SHARED = ("vae-average.pt", "classifier-average.pt", "teacher-average.pt", "latents.pt")
GOES_ON = {"self-forcing": "teacher forcing"}
"""Variants whose first stage is another's: with the same seed it would end at the same bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How much of the recipe each variant gets, and how long its streams are judged."""

    ode_steps: int
    self_forcing_steps: int
    prompts: int
    seconds: tuple[float, ...]


def variants(plan: RunPlan, scale: Scale) -> dict[str, tuple[StagePlan, ...]]:
    """The stages after the teacher, by variant."""
    shared = tuple(stage for stage in plan.stages if stage.method in ("vae", "classify", "flow"))
    clean = replace(plan.stage("ode"), steps=scale.ode_steps)
    noisy = replace(clean, options=clean.options | {"forcing": "diffusion"})
    own = replace(plan.stage("self-forcing"), steps=scale.self_forcing_steps)
    return {
        "teacher forcing": (*shared, clean),
        "diffusion forcing": (*shared, noisy),
        "self-forcing": (*shared, clean, own),
        "no initialisation": (*shared, own),
    }


def train(plan: RunPlan, source: Path, before: Path | None, folder: Path, device: torch.device) -> Path:
    """From what `source` has, and from the few steps of the variant `before` if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    given = [source / name for name in SHARED]
    if before is not None and (before / "ode-average.pt").exists():
        given.append(before / "ode-average.pt")
    for path in given:
        if not (folder / path.name).exists():
            os.link(path, folder / path.name)  # only ever replaced, never written to
    run = BrookRun(plan, folder, device=device)
    run.train(lambda stage, report: None, lambda stage, step, sheet: None)
    run.export(folder / "brook.safetensors", {})
    return folder / "brook.safetensors"


def folder_of(out: Path, variant: str, seed: int) -> Path:
    return out / f"{variant.replace(' ', '-')}-{seed}"


def judge(weights: Path, scale: Scale, device: str) -> dict[str, object]:
    """Adherence at every moment, and the most that any attribute has lost by the last; as found before, if it was."""
    said = weights.with_name("judged.json")
    if said.exists():
        return dict(json.loads(said.read_text()))
    engine = Engine("brook", weights=str(weights), device=device)
    classifier = load_classifier(weights.with_name("classifier.safetensors"), engine.device)
    found = judge_prompts(
        engine.model, classifier, config=engine.stream_config(), held_out=False, count=scale.prompts, seconds=scale.seconds
    )
    means = {f"{moment.second:g}": round(moment.mean, 4) for moment in found.moments}
    lost = {name: round(found.moments[0].adherence[name] - last, 4) for name, last in found.moments[-1].adherence.items()}
    judged = {"mean at second": means, "lost by the last": lost, "first edges": round(found.first_edges, 3)}
    said.write_text(json.dumps(judged))
    return judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("out/brook"))
    parser.add_argument("--recipe", type=Path, default=RECIPES / "brook.toml")
    parser.add_argument("--out", type=Path, default=Path("out/ablation"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", help="variants; all if not said")
    parser.add_argument("--ode-steps", type=int, default=150)
    parser.add_argument("--self-forcing-steps", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--seconds", type=float, nargs="+", default=[2.0, 10.0, 30.0])
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    scale = Scale(
        ode_steps=options.ode_steps,
        self_forcing_steps=options.self_forcing_steps,
        prompts=options.prompts,
        seconds=tuple(options.seconds),
    )
    plan, device, found = read_plan(options.recipe), choose_device(options.device), {}
    for seed in options.seeds:
        for name, stages in variants(plan, scale).items():
            if options.only and name not in options.only:
                continue
            folder, other = folder_of(options.out, name, seed), GOES_ON.get(name)
            before = folder_of(options.out, other, seed) if other else None
            variant = replace(plan, seed=seed, stages=stages, checkpoint_every=10**9)
            weights = train(variant, options.run, before, folder, device)
            found[f"{name}, seed {seed}"] = judge(weights, scale, options.device)
            print(name, seed, json.dumps(found[f"{name}, seed {seed}"]), flush=True)
    write_report("ablation", {"recipe": options.recipe.name, "seeds": options.seeds, **asdict(scale)}, found)


if __name__ == "__main__":
    main()
