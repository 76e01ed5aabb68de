"""One update of self-forcing with three roles on one device, phase by phase, with what the planner says of
its memory.

    python -m benchmarks.self_forcing                           # the 1.3B at 480x832 on a GPU, from its recipe
    python -m benchmarks.self_forcing --model wan-tiny --device cpu --frames 6 --size 32x32
    python -m benchmarks.self_forcing --page                    # writes the last result into docs/training.md

Weights and clips are random: what is measured is time and memory. A step is the student's turn and the
critic's; the first one is left out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch

from benchmarks.pages import write_between
from benchmarks.report import RESULTS, write_report
from millstream.commands.train.role_memory import role_memory
from millstream.core.config import SPATIAL_STRIDE, ModelSpec
from millstream.core.presets import find_model
from millstream.ops.memory import most_bytes_in_use
from millstream.train.distil.matching import MatchingDistillation
from millstream.train.finetune.dataset import (
    Clip,
    ClipSet,
    DatasetCard,
    EncodedClip,
    shard_path,
    write_card,
    write_shard,
)
from millstream.train.finetune.loader import RowLoader
from millstream.train.finetune.recipe import TuningRecipe, read_recipe
from millstream.train.finetune.roles import OtherRole
from millstream.train.finetune.run import TuningRun
from millstream.train.recipe import RECIPES

RECIPE = RECIPES / "self-forcing-wan-1.3b.toml"


def clips(folder: Path, spec: ModelSpec, size: tuple[int, int], frames: int) -> ClipSet:
    """One, of noise."""
    text = torch.randn(spec.dit.text_tokens, spec.dit.text_width)
    card = DatasetCard(
        model=spec.name,
        fingerprint="",
        sizes=(size,),
        fps=16.0,
        latent_frames=frames,
        clips_per_video=1,
        videos_per_shard=1,
        videos=1,
    )
    write_card(folder, card, torch.zeros_like(text))
    latents = torch.randn(frames, spec.dit.channels, size[0] // SPATIAL_STRIDE, size[1] // SPATIAL_STRIDE)
    clip = Clip(video="noise.mp4", size=size, start_s=0.0, caption="noise")
    write_shard(shard_path(folder, 0), [EncodedClip(clip, latents, text)], [])
    return ClipSet(folder)


class Phases:
    """Seconds by name, of methods that are watched."""

    def __init__(self, device: torch.device) -> None:
        self.seconds = dict[str, float]()
        self._device = device

    def watch(self, owner: Any, method: str, name: str) -> None:
        plain: Callable[..., Any] = getattr(owner, method)

        def timed(*given: Any, **named: Any) -> Any:
            begun = self.now()
            found = plain(*given, **named)
            self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - begun
            return found

        setattr(owner, method, timed)

    def now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def measure(
    recipe: TuningRecipe, spec: ModelSpec, found: ClipSet, device: torch.device, folder: Path, steps: int
) -> dict[str, Any]:
    run = TuningRun(recipe, spec, found, folder, device)
    method = run._distillation
    phases = Phases(device)
    assert isinstance(method, MatchingDistillation), f"{recipe.method} has no such phases"
    phases.watch(method._painting, "paint", "rollouts, both turns")
    phases.watch(method._student.predictor, "flows", "student, one step again")
    phases.watch(method._judges, "pull", "teacher twice and critic")
    phases.watch(method._student, "learn", "student, forward, backward, update")
    phases.watch(method._judges, "learn", "critic, forward, backward, update")
    with RowLoader(run._rows, device, position=0) as loader:
        run._learn(0, loader.next())
        phases.seconds.clear()
        begun = phases.now()
        for step in range(1, steps + 1):
            run._learn(step, loader.next())
        whole = (phases.now() - begun) / steps
    return {
        "update_s": round(whole, 4),
        "phases_s": {name: round(seconds / steps, 4) for name, seconds in phases.seconds.items()},
        "peak_gib": round(most_bytes_in_use(device) / 2**30, 2),
        "state_gib_planned": {
            each.role: round(each.state.total / 2**30, 3) for each in role_memory(recipe, spec)
        },
    }


def table(report: dict[str, Any]) -> list[str]:
    found = report["measured"]
    asked = report["configuration"]
    phases = [f"| {name} | {seconds:.2f} s |" for name, seconds in found["phases_s"].items()]
    states = ", ".join(f"{role} {gib:.1f}" for role, gib in found["state_gib_planned"].items())
    return [
        "| phase | time |",
        "| --- | --- |",
        *phases,
        f"| **one update** | **{found['update_s']:.1f} s** |",
        "",
        f"{asked['model']}, {asked['size']}, {asked['frames']} latent frames, recompute "
        f"{asked['recompute']}; peak "
        f"{found['peak_gib']:.1f} GiB, of which roles hold as planned (GiB): {states}.",
        f"{report['hardware']['gpu']}, torch {report['versions']['torch']}, commit `{report['commit']}`.",
    ]


def write_page() -> None:
    report = json.loads((RESULTS / "self_forcing.json").read_text())
    write_between(RESULTS.parents[1] / "docs" / "training.md", "benchmarks.self_forcing", table(report))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="wan2.1-t2v-1.3b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="480x832")
    parser.add_argument("--frames", type=int, default=21)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--recompute", default="full")
    parser.add_argument(
        "--page", action="store_true", help="write the last result into docs/training.md and measure nothing"
    )
    asked = parser.parse_args()
    if asked.page:
        write_page()
        return
    del asked.page
    spec = find_model(asked.model)
    (height, width) = map(int, asked.size.split("x"))
    precision = "bf16" if asked.device == "cuda" else "fp32"
    begins = {
        "student_every": 1,
        "critic_first": 0,
        "begun": 1.0,
        "longest": 99,
    }  # every rollout the same work
    recipe = msgspec.structs.replace(
        read_recipe(RECIPE),
        model=asked.model,
        weights=("random:1",),
        teacher=OtherRole(weights=("random:2",)),
        precision=precision,
        recompute=asked.recompute,
        distil=read_recipe(RECIPE).distil | begins,
    )
    with TemporaryDirectory() as folder:
        found = clips(Path(folder) / "clips", spec, (height, width), asked.frames)
        measured = measure(recipe, spec, found, torch.device(asked.device), Path(folder), asked.steps)
    write_report("self_forcing", {**vars(asked), "distil": recipe.distil, "levels": recipe.levels}, measured)


if __name__ == "__main__":
    main()
