"""Is Brook better for having been tuned by reward? Four ways at equal time, judged by a judge that none of them has seen.

    millstream train judge --out out/tune/judge
    python -m benchmarks.tune --judge out/tune/judge/judge.safetensors --minutes 5 --seeds 3

In pieces, since one machine may not be had for all of it at once; what is done is kept in `--out` and not done again
(`--slice 8` stops tuning after eight minutes of a call, and the next call goes on):

    python -m benchmarks.tune --judge J --minutes 5 --only fork-grpo/0        # one way, one seed: tunes, then judges
    python -m benchmarks.tune --judge J --only before                         # the model as it was
    python -m benchmarks.tune --judge J --only forks                          # what a fork saves
    python -m benchmarks.tune --judge J --table                               # what there is, as a table and a result

Every way has the same minutes of rolling out, rewarding and learning (evaluations come on top), the same reward, the same
number of streams a step, and is exported by what its last step left. `best-of-n` learns to repeat the best of each group.
`kl-0` is fork-grpo with nothing that holds it to the model it was: the example of what a reward is then worth.
Adherence is relative to renders of the same scenes, at 2 s; fewer prompts are streamed on to 120 s, where drift is the most
that any attribute has lost since. `forks` times sixteen futures of one past against sixteen streams with a past each.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.report import write_report
from millstream.core.errors import ConfigError
from millstream.core.files import write_whole
from millstream.core.presets import find_model
from millstream.engine.device_choice import choose_device
from millstream.models.registry import load_model
from millstream.ops.precision import working_dtype
from millstream.trainer.evaluate.adherence import judge_prompts
from millstream.trainer.evaluate.classifier import load_classifier
from millstream.trainer.plan import RECIPES
from millstream.trainer.policy.recipe import PolicyRecipe, read_policy_recipe
from millstream.trainer.policy.rollouts import RolloutEngine, RolloutPlan
from millstream.trainer.policy.run import PolicyReport, PolicyRun
from millstream.trainer.tuning.export import export

WAYS: dict[str, dict[str, Any]] = {
    "fork-grpo": {"algorithm": "grpo"},
    "grpo": {"algorithm": "grpo", "fork": (0, 0)},
    "ppo": {"algorithm": "ppo", "fork": (0, 0), "shared_start": False},
    "best-of-n": {"algorithm": "best-of-n"},
    "kl-0": {"algorithm": "grpo", "kl_coefficient": 0.0, "kl_target": 0.0},
}
BEFORE, FORKS, SPENT = "before", "forks", "spent.json"
SOON = 2.0
"""Seconds."""
WEAKEST = ("thing", "motion")


def tuned(way: str, seed: int, asked: argparse.Namespace, folder: Path) -> Path | None:
    """The file that so many minutes of one way leave; None where `--slice` ended first and there is more to do."""
    recipe = _recipe(way, seed, asked)
    spec, device, kept, begun = find_model(recipe.model), choose_device(asked.device), folder / SPENT, time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    run = PolicyRun(recipe, spec, folder, Path.cwd(), device)
    spent = json.loads(kept.read_text()) if kept.exists() else {"seconds": 0.0, "steps": 0, "streams": 0}

    def report(said: PolicyReport) -> None:
        spent["seconds"] += sum(said.numbers[name] for name in ("sync_s", "rollout_s", "reward_s", "learn_s"))
        spent["steps"] += 1
        spent["streams"] += recipe.batch

    def is_enough() -> bool:
        return spent["seconds"] >= 60 * asked.minutes or time.perf_counter() - begun >= 60 * asked.slice

    run.train(report, is_enough)
    write_whole(kept, json.dumps(spent))
    return export(recipe, spec, folder, run.learnt()) if spent["seconds"] >= 60 * asked.minutes else None


def _recipe(way: str, seed: int, asked: argparse.Namespace) -> PolicyRecipe:
    """The one that ships, changed in what the ways differ in."""
    changes = {"seed": seed, "steps": 1_000_000, "judge": "", "evaluate_every": 1_000_000, "checkpoint_every": 1_000_000}
    small = {"height": 64, "width": 64, "prompts_per_step": 1, "group": 2, "fork": (1, 1), "evaluate_prompts": 2}
    recipe = read_policy_recipe(asked.recipe or RECIPES / "reward-brook.toml")
    return msgspec.structs.replace(recipe, **((small if asked.miniature else {}) | changes | WAYS[way]))


def judged(weights: str, asked: argparse.Namespace) -> dict[str, Any]:
    """By the held-back judge, of prompts that training saw and of held-out ones: soon, and late."""
    device, spec = choose_device(asked.device), find_model("brook")
    model = load_model(spec, [weights], device=device, dtype=working_dtype(device))
    judge, config = load_classifier(asked.judge, device), _recipe("grpo", 0, asked).stream(spec)
    found: dict[str, Any] = {"soon": [], "late": []}
    for held_out in (False, True):
        for name, count, seconds in (("soon", asked.count, (SOON,)), ("late", asked.late_count, (SOON, asked.late))):
            moments = judge_prompts(model, judge, config=config, held_out=held_out, count=count, seconds=seconds).moments
            found[name].append(asdict(moments[-1]))
    return found


def forks(asked: argparse.Namespace) -> dict[str, float]:
    """Seconds of sixteen futures, with one past and with one each."""
    recipe, spec, device = _recipe("fork-grpo", 0, asked), find_model("brook"), choose_device(asked.device)
    model = load_model(spec, recipe.weights, device=device, dtype=torch.float32)
    engine = RolloutEngine(model.dit, model, recipe.stream(spec), recipe.noise(spec), torch.float32)
    count, past = (2, 2) if asked.miniature else (16, 8)
    prompt = spec.default_prompt
    plans = {
        "one_past_s": RolloutPlan(prompts=(prompt,), group=count, chunks=recipe.chunks, fork_at=past, seed=0),
        "own_pasts_s": RolloutPlan(prompts=(prompt,) * count, group=1, chunks=recipe.chunks, fork_at=past, seed=0),
    }
    found: dict[str, float] = {"futures": count, "chunks_of_past": past, "chunks_of_future": recipe.chunks}
    for name, plan in plans.items():
        times = [_seconds(engine, plan) for _ in range(1 if asked.miniature else 4)]
        found[name] = statistics.median(times[-3:])  # the first warms up
    return found | {"times_better": found["own_pasts_s"] / found["one_past_s"]}


def _seconds(engine: RolloutEngine, plan: RolloutPlan) -> float:
    begun = time.perf_counter()
    engine.show(engine.roll(plan)).cpu()
    return time.perf_counter() - begun


def piece(name: str, asked: argparse.Namespace) -> None:
    """One way with one seed, or the model as it was; written down when it is judged."""
    done = asked.out / f"{name.replace('/', '-')}.json"
    if done.exists():
        print(f"{name}: is there already ({done})")
        return
    begun = time.perf_counter()
    found: dict[str, Any]
    if name == FORKS:
        found = dict(forks(asked))
    elif name == BEFORE:
        found = {"judged": judged("bundled", asked)}
    else:
        way, _, seed = name.partition("/")
        folder = asked.out / name.replace("/", "-")
        path = folder / "brook.safetensors"
        if not path.exists() and tuned(way, int(seed), asked, folder) is None:
            print(f"{name}: {time.perf_counter() - begun:.0f} s, and there is more to do: call it again")
            return
        found = {"spent": json.loads((folder / SPENT).read_text()), "judged": judged(str(path), asked)}
    write_whole(done, json.dumps(found, indent=2) + "\n")
    print(f"{name}: {time.perf_counter() - begun:.0f} s")


def table(asked: argparse.Namespace) -> dict[str, Any]:
    """Means over seeds, and how far each is from the model as it was, in points."""
    before = json.loads((asked.out / f"{BEFORE}.json").read_text())["judged"]
    found: dict[str, Any] = {BEFORE: _figures(before)}
    if (asked.out / f"{FORKS}.json").exists():
        found[FORKS] = json.loads((asked.out / f"{FORKS}.json").read_text())
    for way in WAYS:
        runs = [json.loads(path.read_text()) for path in sorted(asked.out.glob(f"{way}-[0-9]*.json"))]
        if not runs:
            continue
        figures = [_figures(run["judged"]) for run in runs]
        mean = {name: statistics.mean(each[name] for each in figures) for name in figures[0]}
        found[way] = {
            "seeds": len(runs),
            "steps": statistics.mean(run["spent"]["steps"] for run in runs),
            "gpu_seconds": statistics.mean(run["spent"]["seconds"] for run in runs),
            "mean": mean,
            "points_better": {name: 100 * (mean[name] - found[BEFORE][name]) for name in mean if "adherence" in name},
            "by_seed": figures,
        }
    return found


def _figures(found: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Of seen and held-out prompts together."""

    def both(moments: list[dict[str, Any]], name: str) -> float:
        return statistics.mean(moment[name] for moment in moments)

    soon, late = found["soon"], found["late"]
    by_name = {f"{name} adherence": both([moment["adherence"] for moment in soon], name) for name in soon[0]["adherence"]}
    return by_name | {
        "weakest adherence": statistics.mean(by_name[f"{name} adherence"] for name in WEAKEST),
        "mean adherence": both(soon, "mean"),
        "late adherence": both(late, "mean"),
        "flicker": both(soon, "flicker"),
        "late flicker": both(late, "flicker"),
        "drift": both(late, "lost"),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", type=Path, help="from millstream train judge")
    parser.add_argument("--recipe", type=Path, help="another than reward-brook.toml")
    parser.add_argument("--minutes", type=float, default=5.0, help="of each way and seed")
    parser.add_argument("--slice", type=float, default=1e9, help="minutes of tuning in one call; the next one goes on")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--count", type=int, default=256, help="prompts of each kind that are judged")
    parser.add_argument("--late", type=float, default=120.0, help="second until which some go on")
    parser.add_argument("--late-count", type=int, default=48, help="prompts of each kind that do")
    parser.add_argument("--only", default="", help=f"{BEFORE}, {FORKS}, or one of {', '.join(WAYS)} with /SEED")
    parser.add_argument("--table", action="store_true", help="only write down what there is")
    parser.add_argument("--miniature", action="store_true", help="tiny rollouts, to see that it works")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("out/tune"))
    return parser.parse_args()


def main() -> None:
    asked = parse()
    pieces = [asked.only] if asked.only else [BEFORE, FORKS, *(f"{way}/{seed}" for seed in range(asked.seeds) for way in WAYS)]
    if not asked.table:
        if asked.judge is None or not asked.judge.is_file():
            raise SystemExit("give --judge: millstream train judge makes one")
        for name in pieces:
            if name not in (BEFORE, FORKS) and (name.partition("/")[0] not in WAYS or not name.partition("/")[2].isdecimal()):
                raise SystemExit(str(ConfigError(f"--only {name}: {BEFORE}, or one of {', '.join(WAYS)} with /SEED")))
            piece(name, asked)
    if not asked.only:
        configuration = {"minutes": asked.minutes, "count": asked.count, "late": asked.late, "ways": WAYS}
        write_report("tune-miniature" if asked.miniature else "tune", configuration, table(asked))


if __name__ == "__main__":
    main()
