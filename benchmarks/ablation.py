"""Why each stage of Brook's training is there: the same student trained without one of them, on three seeds.

    python -m benchmarks.ablation --run out/brook

Starts from the VAE, the judge, the latents and the teacher of a finished run, or from what
`benchmarks.ablation_source` makes. Every variant is judged by how well it keeps to its prompts as a stream
goes on:

teacher forcing      few steps learnt with clean frames of real clips as context
diffusion forcing    the same with noisy ones, most of them nearly noise; also streamed with a noised past
..., matched         teacher forcing, then distribution matching after real frames, clean or noisy
..., faint           either with little noise, most of the time
..., flow            the many steps of a teacher, learnt on with a past of either kind; streamed in 8, its
                     past clean or noisy
self-forcing         the same after the student's own; also streamed in 1 and in 4 steps
no initialisation    self-forcing straight from the teacher

Goes on where it was stopped: what has been trained and what has been judged is kept in --out. Steps of so
small a model leave a GPU idle for most of the time: --jobs 5 trains and judges five at once, each in a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from msgspec.structs import replace

from benchmarks.report import write_report
from millstream.core.schedule import even_steps
from millstream.engine.device_choice import choose_device
from millstream.engine.engine import Engine
from millstream.train.brook import BrookRun
from millstream.train.evaluate.adherence import Adherence, judge_prompts
from millstream.train.evaluate.classifier import load_classifier
from millstream.train.plan import RunPlan, StagePlan, read_plan
from millstream.train.recipe import RECIPES

SHARED = ("vae-average.pt", "classifier-average.pt", "teacher-average.pt", "latents.pt")
FAINT = {"faint": 0.1, "fainter": 0.03}
"""Timestep shifts that move the levels of a noisy past towards none: half of the levels are below 9%, or
below 3%."""
NEARLY_NOISE = 3.0
"""Timestep shift of sampling: half of the levels are above 75%."""
ALL_ALIKE = 1.0
"""Timestep shift with which every noise level is equally likely."""
GOES_ON = dict.fromkeys(
    (
        "teacher forcing, matched",
        "diffusion forcing, matched",
        *(f"diffusion forcing, matched, {how}" for how in FAINT),
        "self-forcing",
    ),
    "teacher forcing",
)
"""Variants whose first stage is another's: with the same seed it would end at the same bits."""
Ways = dict[str, dict[str, Any]]
"""How a variant is streamed and judged: a name and what changes of the model's own way."""


def _in_steps(*counts: int) -> Ways:
    return {f"steps {count}": {"steps": even_steps(count)} for count in counts}


def _past_at(*levels: float) -> Ways:
    return {f"past at {level:g}": {"context_noise": level} for level in levels}


OWN_WAY: Ways = {"": {}}
MANY_STEPS = {"steps": even_steps(8)}
WAYS: dict[str, Ways] = {
    "self-forcing": OWN_WAY | _in_steps(1, 4),
    "diffusion forcing": OWN_WAY | _past_at(100.0, 300.0),
    "diffusion forcing, matched": OWN_WAY | _past_at(100.0, 300.0),
    **{f"diffusion forcing, {how}": OWN_WAY | _past_at(50.0, 100.0) for how in FAINT},
    **{f"diffusion forcing, matched, {how}": OWN_WAY | _past_at(50.0, 100.0) for how in FAINT},
    **{
        f"{forcing} forcing, flow": {
            way: MANY_STEPS | past for way, past in (OWN_WAY | _past_at(100.0, 200.0)).items()
        }
        for forcing in ("teacher", "diffusion")
    },
}
WARM_UP = 8
"""One step in so many: the recipe's warm-up would be most of a stage that is cut short."""
Judged = dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How much of the recipe each variant gets, and how long its streams are judged."""

    ode_steps: int
    teacher_steps: int
    """Steps of the guided teacher path that the few steps are learnt from."""
    self_forcing_steps: int
    flow_steps: int
    streams: int
    """Streams kept between steps; with fewer of them, each continues sooner."""
    prompts: int
    seconds: tuple[float, ...]


def variants(plan: RunPlan, scale: Scale) -> dict[str, tuple[StagePlan, ...]]:
    """The stages after the teacher, by variant."""
    shared = tuple(stage for stage in plan.stages if stage.method in ("vae", "classify", "flow"))

    def cut_short(stage: StagePlan, steps: int, **options: int) -> StagePlan:
        return replace(stage, steps=steps, warm_up=steps // WARM_UP, options=stage.options | options)

    clean = cut_short(plan.stage("ode"), scale.ode_steps, teacher_steps=scale.teacher_steps)

    def noisy(context_shift: float) -> StagePlan:
        return replace(
            clean, options=clean.options | {"forcing": "diffusion", "context_shift": context_shift}
        )

    own = cut_short(plan.stage("self-forcing"), scale.self_forcing_steps, streams=scale.streams)

    def given(forcing: str, context_shift: float = 1.0) -> StagePlan:
        alike = {name: own.options[name] for name in ("guidance", "shift", "student_every", "window")}
        return replace(
            own,
            name="dmd",
            method="dmd",
            options=alike | {"forcing": forcing, "context_shift": context_shift},
        )

    teacher = plan.stage("teacher")

    def many(forcing: str) -> StagePlan:
        kept = {name: teacher.options[name] for name in ("drop", "window")}
        stage = cut_short(teacher, scale.flow_steps)
        return replace(
            stage, name="flow", ema=clean.ema, options=kept | {"forcing": forcing, "shift": ALL_ALIKE}
        )

    return {
        **{f"{forcing} forcing, flow": (*shared, many(forcing)) for forcing in ("teacher", "diffusion")},
        "teacher forcing": (*shared, clean),
        "diffusion forcing": (*shared, noisy(NEARLY_NOISE)),
        **{f"diffusion forcing, {how}": (*shared, noisy(shift)) for how, shift in FAINT.items()},
        "teacher forcing, matched": (*shared, clean, given("teacher")),
        "diffusion forcing, matched": (*shared, clean, given("diffusion")),
        **{
            f"diffusion forcing, matched, {how}": (*shared, clean, given("diffusion", shift))
            for how, shift in FAINT.items()
        },
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
    run.train(lambda stage, report: None)
    run.export(folder / "brook.safetensors", {})
    return folder / "brook.safetensors"


def folder_of(out: Path, variant: str, seed: int) -> Path:
    return out / f"{variant.replace(', ', '-').replace(' ', '-')}-{seed}"


def judge(weights: Path, way: str, changes: Mapping[str, Any], scale: Scale, device: str) -> Judged:
    """Streamed in the model's own way but for the `changes`; as found before, if it was."""
    said = weights.with_name(f"judged {way}".strip().replace(" ", "-") + ".json")
    if said.exists():
        return dict(json.loads(said.read_text()))
    engine = Engine("brook", weights=str(weights), device=device)
    judgement = judge_prompts(
        engine.model,
        load_classifier(weights.with_name("classifier.safetensors"), engine.device),
        config=engine.stream_config(**changes),
        held_out=False,
        count=scale.prompts,
        seconds=scale.seconds,
    )
    said.write_text(json.dumps(figures(judgement)))
    return figures(judgement)


def figures(found: Adherence) -> Judged:
    """The mean of all attributes at every moment, what it and the attribute that lost most have lost by the
    last."""
    first = found.moments[0]
    last = found.moments[-1]
    return {
        **{f"mean at {moment.second:g} s": round(moment.mean, 4) for moment in found.moments},
        "drift": round(first.mean - last.mean, 4),
        "most lost": round(last.lost, 4),
        "edges at the end": round(last.edges, 3),
        "first edges": round(found.first_edges, 3),
    }


def over_seeds(found: Mapping[str, Sequence[Judged]]) -> dict[str, dict[str, str]]:
    """Mean and, of several seeds, standard deviation of every figure, by variant."""

    def spelled(values: Sequence[float]) -> str:
        return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")

    return {
        name: {figure: spelled([each[figure] for each in seeds]) for figure in seeds[0]}
        for name, seeds in found.items()
    }


def each_alone(asked: Sequence[str], chosen: Sequence[tuple[int, str]], jobs: int) -> None:
    """Each seed of each variant in a process of its own, so many at a time. What they find is kept."""

    def alone(one: tuple[int, str]) -> int:
        only = ["--seeds", str(one[0]), "--only", one[1], "--jobs", "1", "--report", ""]
        return subprocess.run([sys.executable, "-m", "benchmarks.ablation", *asked, *only]).returncode

    with ThreadPoolExecutor(jobs) as pool:
        failed = [one for one, code in zip(chosen, pool.map(alone, chosen), strict=True) if code != 0]
    if failed:
        named = ", ".join(f"{name} of seed {seed}" for seed, name in failed)
        raise SystemExit(f"error: {named} failed; if memory was short, take fewer --jobs")


def main() -> None:
    options = _options()
    scale = Scale(
        ode_steps=options.ode_steps,
        teacher_steps=options.teacher_steps,
        self_forcing_steps=options.self_forcing_steps,
        flow_steps=options.flow_steps,
        streams=options.streams,
        prompts=options.prompts,
        seconds=tuple(options.seconds),
    )
    plan = read_plan(options.recipe)
    device = choose_device(options.device)
    stages = variants(plan, scale)
    if unknown := set(options.only or ()) - stages.keys():
        raise SystemExit(
            f"error: no variant is called {', '.join(sorted(unknown))}; there are {'; '.join(stages)}"
        )
    chosen = [
        (seed, name) for seed in options.seeds for name in stages if not options.only or name in options.only
    ]
    if options.jobs > 1:
        each_alone(sys.argv[1:], chosen, options.jobs)
    found: dict[str, list[Judged]] = {}
    for seed, name in chosen:
        other = GOES_ON.get(name)
        before = folder_of(options.out, other, seed) if other else None
        variant = replace(plan, seed=seed, stages=stages[name], checkpoint_every=10**9)
        weights = train(variant, options.run, before, folder_of(options.out, name, seed), device)
        for way, changes in WAYS.get(name, OWN_WAY).items():
            if options.ways and way not in options.ways:
                continue
            key = f"{name}, {way}" if way else name
            found.setdefault(key, []).append(judge(weights, way, changes, scale, options.device))
            line = f"{key}, seed {seed}: {json.dumps(found[key][-1])}\n"
            print(line, end="", flush=True)  # at once: other jobs write into the same pipe
    if options.report:
        configuration = {"recipe": options.recipe.name, "seeds": options.seeds, **asdict(scale)}
        write_report(options.report, configuration, {"over seeds": over_seeds(found), "each seed": found})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, default=Path("out/brook"))
    parser.add_argument("--recipe", type=Path, default=RECIPES / "brook.toml")
    parser.add_argument("--out", type=Path, default=Path("out/ablation"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", help="variants; all if not said")
    ways = sorted({way for each in WAYS.values() for way in each})
    parser.add_argument(
        "--ways", nargs="+", choices=ways, help="to stream them, '' for the model's own; all if not said"
    )
    parser.add_argument("--report", default="ablation", help="name of the results' file; empty for none")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--ode-steps", type=int, default=80)
    parser.add_argument("--teacher-steps", type=int, default=6)
    parser.add_argument("--self-forcing-steps", type=int, default=80)
    parser.add_argument("--flow-steps", type=int, default=400)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--seconds", type=float, nargs="+", default=[2.0, 30.0])
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
