"""Is Brook better for having been tuned by reward? Five ways at equal time, judged by a judge that none of them has seen.

    millstream train judge --out out/tune/judge
    python -m benchmarks.tune --judge out/tune/judge/judge.safetensors --minutes 0.5 --slice 9

Goes on where it was: what is done is kept in `--out`, and the result is written after every piece. `--slice 9` ends a call
after nine minutes, within a run of tuning if it must; the next call goes on from there. `--set lr=1e-4` changes the recipe
(give another `--out` then), `--only` does some pieces of these alone, in this order:

    before            the model as it was
    forks             sixteen futures of one past against sixteen streams with a past each
    fork-grpo/0       one way with one seed: tunes, then judges at 2 s; all ways, then the next seed
    late/before       the same streams until 120 s: drift is the most that any attribute has lost since 2 s
    late/fork-grpo/0  ... with all seeds, then kl-0/0; late/ of any other, and gradient-first/0, if they are asked for

Every way has the same minutes of trying, rolling out, rewarding and learning and the same reward, learns from 128 streams a
step (`gradient` from the 64 of 128 that missed most), and is exported by what its last step left: nothing was chosen by the
judge. `best-of-n` learns to repeat the best of each group, `gradient` follows the classifiers' gradients through both steps of
Brook, `gradient-first` through the second to the first alone. `kl-0` is fork-grpo with nothing that holds it to the model it
was, with one seed: what a reward is then worth. Adherence is relative to renders of the same scenes, over prompts that training
saw and held-out ones together. `python -m benchmarks.tuning_page` writes what was found into docs/tuning.md.

More classifiers make a reward that is harder to cheat, and one that is neither theirs nor the judge chooses what is exported:

    millstream train judge --out out/second --architecture convolutions --size 256 --seed 11
    millstream train judge --out out/third --seed 12 --size 160
    python -m benchmarks.tune --judge ... --classifier out/second/judge.safetensors --validator out/third/judge.safetensors \\
        --every 20 --minutes 5 --only before,gradient/0

`--every 20` shows both, and by the judge the two weakest of 96 prompts, every so many steps; that costs none of the minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.report import write_report
from millstream.core.files import write_whole
from millstream.core.presets import find_model
from millstream.engine.device_choice import choose_device
from millstream.models.registry import LoadedModel, load_model
from millstream.ops.precision import working_dtype
from millstream.trainer.evaluate.adherence import judge_prompts
from millstream.trainer.evaluate.classifier import load_classifier
from millstream.trainer.plan import RECIPES
from millstream.trainer.policy.control import Evaluated
from millstream.trainer.policy.evaluation import Evaluation
from millstream.trainer.policy.recipe import PolicyRecipe, read_policy_recipe
from millstream.trainer.policy.rollouts import RolloutEngine, RolloutPlan
from millstream.trainer.policy.run import PolicyReport, PolicyRun
from millstream.trainer.reward.rewards import RewardPlan
from millstream.trainer.tuning.export import export

BEGUN = time.perf_counter()
GRADIENT: dict[str, Any] = {
    "algorithm": "gradient", "prompts_per_step": 64, "group": 1, "tried": 2, "rows_at_once": 16, "lr": 6e-5, "average": 0.95,
    "kl_coefficient": 2e-4, "kl_target": 120.0, "kl_bound": 600.0,
}  # fmt: skip
"""8 nats a chunk are latents moved by 0.05 of their deviation: nothing becomes another thing by so little. 120 are 0.2."""
WAYS: dict[str, dict[str, Any]] = {
    "fork-grpo": {"algorithm": "grpo"},
    "grpo": {"algorithm": "grpo", "fork": (0, 0)},
    "ppo": {"algorithm": "ppo", "fork": (0, 0), "shared_start": False},
    "best-of-n": {"algorithm": "best-of-n"},
    "gradient": GRADIENT,
    "gradient-first": GRADIENT | {"learn_steps": (0,)},
    "kl-0": {"algorithm": "grpo", "kl_coefficient": 0.0, "kl_target": 0.0},
}
COMPARED = ("fork-grpo", "grpo", "ppo", "best-of-n", "gradient")
BEFORE, FORKS, LATE, SPENT = "before", "forks", "late", "spent.json"
SOON = 2.0
"""Seconds."""
CURVE_COUNT, VALIDATED = 48, 384
"""Prompts of each kind that are judged along the way, and of those that are validated."""
WEAKEST = ("thing", "motion")
PHASES = ("sync_s", "try_s", "rollout_s", "reward_s", "learn_s")


def tuned(way: str, seed: int, asked: argparse.Namespace, folder: Path) -> Path | None:
    """The file that so many minutes of one way leave; None where `--slice` ended first and there is more to do."""
    recipe = _recipe(way, seed, asked)
    spec, device, kept = find_model(recipe.model), choose_device(asked.device), folder / SPENT
    folder.mkdir(parents=True, exist_ok=True)
    run = PolicyRun(recipe, spec, folder, Path.cwd(), device)
    spent = json.loads(kept.read_text()) if kept.exists() else {"seconds": 0.0, "steps": 0, "streams": 0}

    def report(said: PolicyReport) -> None:
        numbers = said.numbers
        spent["seconds"] += sum(numbers.get(name, 0.0) for name in PHASES)
        spent["steps"] += 1
        spent["streams"] += recipe.batch
        if said.step < 3 or spent["steps"] % 10 == 0:
            where = ", ".join(f"{name} {numbers[name]:.2f}" for name in PHASES if name in numbers)
            kl = f", kl {numbers['kl']:.2f} x {numbers['kl_coefficient']:.3g}" if "kl" in numbers else ""
            print(f"  step {said.step + 1}: reward {numbers['reward']:.4f}{kl}; {where}", flush=True)

    def is_enough() -> bool:
        return spent["seconds"] >= 60 * asked.minutes or is_over(asked)

    def show(step: int, found: Evaluation, _: list[Evaluated]) -> None:
        if asked.every:
            model = replace(run.engine.model, dit=run.engine.dit)
            said = _line(BEFORE, {"judged": judge_model(model, asked, 2 if asked.miniature else CURVE_COUNT, (SOON,))}, asked)
            by = f"reward {found.reward:.4f}, validator {found.judge:.4f} {_shares(found.attributes)}"
            print(f"  at step {step}, {spent['seconds']:.0f} s: {by}, flicker {found.flicker:.4f}; judge: {said}", flush=True)

    is_done = run.train(report, is_enough, show)
    write_whole(kept, json.dumps(spent))
    if run.has_parted:
        print(f"  reward and validator parted after {spent['steps']} steps")
    return export(recipe, spec, folder, run.learnt()) if is_done or spent["seconds"] >= 60 * asked.minutes else None


def _shares(attributes: dict[str, float]) -> str:
    return "(" + ", ".join(f"{name} {share:.3f}" for name, share in attributes.items()) + ")"


def is_over(asked: argparse.Namespace) -> bool:
    """Whether this call has had its time."""
    return time.perf_counter() - BEGUN >= 60 * asked.slice


def _recipe(way: str, seed: int, asked: argparse.Namespace) -> PolicyRecipe:
    """The one that ships, changed in what the ways differ in."""
    never = 1_000_000
    changes = {
        "seed": seed,
        "steps": never,
        "judge": str(asked.validator or ""),
        "evaluate_every": asked.every or never,
        "evaluate_prompts": VALIDATED if asked.every and not asked.miniature else 1,
        "checkpoint_every": never,
    }
    small = {"height": 64, "width": 64, "prompts_per_step": 1, "group": 2, "fork": (1, 1)}
    recipe = read_policy_recipe(asked.recipe or RECIPES / "reward-brook.toml")
    wanted = msgspec.toml.decode("\n".join(asked.set).encode())
    by_all = {"rewards": [each for reward in recipe.rewards for each in _by_all(reward, asked.classifier)]}
    plain = msgspec.to_builtins(recipe) | msgspec.to_builtins(by_all)
    changed = plain | WAYS[way] | (small if asked.miniature else {}) | wanted | changes
    return msgspec.convert(changed, PolicyRecipe)


def _by_all(reward: RewardPlan, more: list[str]) -> list[RewardPlan]:
    """The same reward by so many more classifiers, which count alike."""
    if reward.kind != "attributes":
        return [reward]
    names, scale = [reward.classifier, *more], reward.scale / (1 + len(more))
    return [msgspec.structs.replace(reward, classifier=name, scale=scale) for name in names]


def judged(weights: str, asked: argparse.Namespace, count: int, seconds: tuple[float, ...]) -> list[dict[str, Any]]:
    """By the held-back judge at the last of `seconds`: of prompts that training saw, and of held-out ones."""
    device = choose_device(asked.device)
    return judge_model(
        load_model(find_model("brook"), [weights], device=device, dtype=working_dtype(device)), asked, count, seconds
    )


def judge_model(model: LoadedModel, asked: argparse.Namespace, count: int, seconds: tuple[float, ...]) -> list[dict[str, Any]]:
    judge, config = load_classifier(asked.judge, model.device), _recipe("grpo", 0, asked).stream(model.spec)
    both = (
        judge_prompts(model, judge, config=config, held_out=held_out, count=count, seconds=seconds)
        for held_out in (False, True)
    )
    return [asdict(each.moments[-1]) | {"real": each.real} for each in both]


def forks(asked: argparse.Namespace) -> dict[str, float]:
    """Seconds of groups of sixteen futures, each group with one past and each stream with its own: until they are streamed, and
    until they are pictures on the device, where rewards look. Own pasts are made into pictures too, as people see them."""
    recipe, spec, device = _recipe("fork-grpo", 0, asked), find_model("brook"), choose_device(asked.device)
    engine = PolicyRun(recipe, spec, asked.out / FORKS, Path.cwd(), device).engine
    groups, count, past = (1, 2, 2) if asked.miniature else (recipe.prompts_per_step, 16, 8)
    prompts, chunks = (spec.default_prompt,) * groups, recipe.chunks
    plans = {
        "one_past": RolloutPlan(prompts=prompts, group=count, chunks=chunks, fork_at=past, seed=0),
        "own_pasts": RolloutPlan(prompts=prompts * count, group=1, chunks=chunks, fork_at=past, seed=0),
    }
    found: dict[str, float] = {"groups": groups, "futures": count, "chunks_of_past": past, "chunks_of_future": chunks}
    for name, plan in plans.items():
        times = [_seconds(engine, plan) for _ in range(1 if asked.miniature else 4)]  # the first warms up
        streamed, shown = (statistics.median(each) for each in zip(*times[-3:], strict=True))
        found |= {f"{name}_s": shown, f"{name}_streamed_s": streamed, f"{name}_sample_ms": 1e3 * shown / (groups * count)}
    better = {f"times_better{way}": found[f"own_pasts{way}_s"] / found[f"one_past{way}_s"] for way in ("", "_streamed")}
    return found | better


def _seconds(engine: RolloutEngine, plan: RolloutPlan) -> tuple[float, float]:
    """Until everything is streamed, and until it is pictures."""
    begun = time.perf_counter()
    made = engine.roll(plan)
    streamed = _when_done(engine) - begun
    engine.show(made)
    return streamed, _when_done(engine) - begun


def _when_done(engine: RolloutEngine) -> float:
    if engine.model.device.type == "cuda":
        torch.cuda.synchronize(engine.model.device)
    return time.perf_counter()


def piece(name: str, asked: argparse.Namespace) -> None:
    """One piece, written down when it is done; nothing where `--slice` ended within it."""
    begun, done = time.perf_counter(), _kept(name, asked)
    of, late = name.removeprefix(f"{LATE}/"), name.startswith(f"{LATE}/")
    folder = asked.out / of.replace("/", "-")
    weights = "bundled" if of == BEFORE else str(folder / "brook.safetensors")
    found: dict[str, Any]
    if name == FORKS:
        found = dict(forks(asked))
    elif late:
        if of != BEFORE and not Path(weights).exists():
            raise SystemExit(f"{name} needs {of} first")
        found = {"judged": judged(weights, asked, asked.late_count, (SOON, asked.late))}
    else:
        way, _, seed = name.partition("/")
        if name != BEFORE and not Path(weights).exists() and tuned(way, int(seed), asked, folder) is None:
            print(f"{name}: {time.perf_counter() - begun:.0f} s, and there is more to do: call it again")
            return
        found = {"judged": judged(weights, asked, asked.count, (SOON,))}
        if name != BEFORE:
            found["spent"] = json.loads((folder / SPENT).read_text())
    found["wall_s"] = time.perf_counter() - begun
    write_whole(done, json.dumps(found, indent=2) + "\n")
    print(f"{name}: {found['wall_s']:.0f} s; {_line(name, found, asked)}", flush=True)


def _kept(name: str, asked: argparse.Namespace) -> Path:
    path: Path = asked.out / f"{name.replace('/', '-')}.json"
    return path


def _read(name: str, asked: argparse.Namespace) -> dict[str, Any] | None:
    path = _kept(name, asked)
    return json.loads(path.read_text()) if path.exists() else None


def _line(name: str, found: dict[str, Any], asked: argparse.Namespace) -> str:
    """What there is to say of a piece: shares, and in points how far they are from the model as it was."""
    if "judged" not in found:
        return ", ".join(f"{key} {value:.3g}" for key, value in found.items())
    figures = _figures(found["judged"])
    before = _read(f"{LATE}/{BEFORE}" if name.startswith(LATE) else BEFORE, asked)
    was = _figures(before["judged"]) if before else figures
    return ", ".join(f"{key} {value:.3f} ({100 * (value - was[key]):+.1f})" for key, value in figures.items())


def table(asked: argparse.Namespace) -> dict[str, Any]:
    """Means over seeds, and how far each is from the model as it was, in points."""
    found: dict[str, Any] = {}
    if forked := _read(FORKS, asked):
        found[FORKS] = forked
    moments = {"": "soon", f"{LATE}/": LATE}
    was = {name: _figures(read["judged"]) for prefix, name in moments.items() if (read := _read(prefix + BEFORE, asked))}
    found[BEFORE] = dict(was)
    if (before := _read(BEFORE, asked)) and all("real" in each for each in before["judged"]):
        found[BEFORE]["real"] = {
            name: statistics.mean(each["real"][name] for each in before["judged"]) for name in before["judged"][0]["real"]
        }
    for way in WAYS:
        for prefix, name in moments.items():
            runs = [read for seed in range(asked.seeds) if (read := _read(f"{prefix}{way}/{seed}", asked))]
            if not runs or name not in was:
                continue
            figures = [_figures(run["judged"]) for run in runs]
            mean = {key: statistics.mean(each[key] for each in figures) for key in figures[0]}
            found.setdefault(way, {})[name] = {
                "seeds": len(runs),
                "mean": mean,
                "points_better": {key: 100 * (mean[key] - was[name][key]) for key in mean},
                "by_seed": figures,
            }
            if name == "soon":
                found[way] |= {key: statistics.mean(run["spent"][key] for run in runs) for key in runs[0]["spent"]}
    return found


def _figures(found: list[dict[str, Any]]) -> dict[str, float]:
    """Of seen and held-out prompts together."""
    of = {name: statistics.mean(moment["adherence"][name] for moment in found) for name in found[0]["adherence"]}
    figures = {name: statistics.mean(moment[name] for moment in found) for name in ("mean", "flicker", "lost")}
    return of | {"weakest": statistics.mean(of[name] for name in WEAKEST)} | figures


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", type=Path, help="from millstream train judge")
    parser.add_argument("--recipe", type=Path, help="another than reward-brook.toml")
    parser.add_argument("--minutes", type=float, default=0.5, help="of each way and seed")
    parser.add_argument("--slice", type=float, default=1e9, help="minutes of this call; the next one goes on")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--count", type=int, default=256, help="prompts of each kind that are judged")
    parser.add_argument("--late", type=float, default=120.0, help="second until which some go on")
    parser.add_argument("--late-count", type=int, default=48, help="prompts of each kind that do")
    parser.add_argument("--classifier", action="append", default=[], help="one more to reward by, from millstream train judge")
    parser.add_argument("--validator", type=Path, help="that chooses what is exported; needs --every")
    parser.add_argument("--every", type=int, default=0, help="steps between evaluations on the way; 0 for none")
    parser.add_argument("--only", default="", help="pieces, with commas between")
    parser.add_argument("--set", action="append", default=[], help="a line of the recipe: lr=1e-4")
    parser.add_argument("--table", action="store_true", help="only write down what there is")
    parser.add_argument("--miniature", action="store_true", help="tiny rollouts, to see that it works")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("out/tune"))
    return parser.parse_args()


def all_pieces(seeds: int) -> list[str]:
    ways = [f"{way}/{seed}" for seed in range(seeds) for way in COMPARED]
    late = [BEFORE, *(f"{COMPARED[0]}/{seed}" for seed in range(seeds))]
    return [BEFORE, FORKS, *ways, *(f"{LATE}/{each}" for each in late), "kl-0/0"]


def known_pieces(seeds: int) -> list[str]:
    judged = [BEFORE, *(f"{way}/{seed}" for way in WAYS for seed in range(seeds))]
    return [FORKS, *judged, *(f"{LATE}/{each}" for each in judged)]


def main() -> None:
    asked = parse()
    pieces = asked.only.split(",") if asked.only else all_pieces(asked.seeds)
    if unknown := set(pieces) - set(known_pieces(asked.seeds)):
        raise SystemExit(f"--only {', '.join(sorted(unknown))}: choose of {', '.join(known_pieces(asked.seeds))}")
    if not asked.table and (asked.judge is None or not asked.judge.is_file()):
        raise SystemExit("give --judge: millstream train judge makes one")
    if asked.validator is not None and not asked.every:
        raise SystemExit("--validator looks at evaluations on the way: give --every 20")
    for name in pieces:
        if asked.table or is_over(asked):
            break
        if not _kept(name, asked).exists():
            piece(name, asked)
            report(asked)
    if asked.table:
        report(asked)


def report(asked: argparse.Namespace) -> None:
    recipe = msgspec.to_builtins(_recipe(COMPARED[0], 0, asked))
    counts = {"count": asked.count, "late": asked.late, "late_count": asked.late_count, "every": asked.every}
    configuration = {"minutes": asked.minutes, **counts, "ways": WAYS, "recipe": recipe}
    with contextlib.redirect_stdout(io.StringIO()):  # lines of pieces are what is read meanwhile
        write_report("tune-miniature" if asked.miniature else "tune", configuration, table(asked))


if __name__ == "__main__":
    main()
