"""Make the starting point of the ablation from the Brook in the package, without a whole run.

    python -m benchmarks.ablation_source --out out/brook
    python -m benchmarks.ablation --run out/brook

VAE and judge are Brook's own; latents are rendered anew, as in the recipe. The teacher is not in the package:
the student, which began as a teacher, is trained in the teacher's stage again, with its text encoder, for the
number of steps given.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from msgspec.structs import replace

from millstream.core.files import Staging
from millstream.core.presets import find_model
from millstream.engine.device_choice import choose_device
from millstream.models.brook.bundle import load_bundle
from millstream.models.brook.files import FINGERPRINT, PATH
from millstream.train.brook import BrookRun
from millstream.train.evaluate.classifier import JUDGE, load_classifier
from millstream.train.loop import StepReport
from millstream.train.methods.flow import TextAndDiT
from millstream.train.plan import RunPlan, read_plan
from millstream.train.recipe import RECIPES

SAID_EVERY = 100
"""Steps."""


def prepare(plan: RunPlan, folder: Path, device: torch.device, *, steps: int) -> None:
    """A run's folder as it is after the teacher. Goes on where it was stopped."""
    dit, vae, words = load_bundle(
        PATH, find_model(plan.model), device=device, dtype=torch.float32, fingerprint=FINGERPRINT
    )
    with Staging(folder) as staging:  # replaced, never written to: an ablation links to them
        torch.save(vae.state_dict(), staging.path("vae-average.pt"))
        torch.save(load_classifier(JUDGE, device).state_dict(), staging.path("classifier-average.pt"))
    stages = tuple(replace(stage, steps=steps) if stage.name == "teacher" else stage for stage in plan.stages)
    run = BrookRun(replace(plan, stages=stages), folder, device=device)
    run.pair.load_state_dict(TextAndDiT(words.model, dit).state_dict())
    run.train(_say, until="teacher")


def _say(stage: str, report: StepReport) -> None:
    if report.step % SAID_EVERY == 0:
        print(f"{stage}, step {report.step}:", report.losses, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/brook"))
    parser.add_argument("--recipe", type=Path, default=RECIPES / "brook.toml")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    prepare(read_plan(options.recipe), options.out, choose_device(options.device), steps=options.steps)


if __name__ == "__main__":
    main()
