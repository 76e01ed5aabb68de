"""Is Brook better for having been tuned by reward? Five ways at equal time, judged by a judge that none of
them has seen.

    python -m benchmarks.tune --slice 8.5 --bring OUT

Goes on where it was: what is done is a row in `--out`, kept as soon as it is, and the result is written after
every row. `--slice 8.5` ends a call after so many minutes, within a run of tuning if it must; one that is cut
off loses a minute of it. `--bring OUT` copies all that another machine needs: rows, the result, classifiers,
tuned files (each below 16 MiB). There `--from OUT` goes on with what is missing, and makes tuned files whole
again. `--only` does some rows alone. In this order:

    judge, second        the held-back judge, and a second classifier to reward by, if they are not there
    before               the model as it was, at 2 s
    gradient/0           one way with one seed: tunes for `--minutes`, then judges at 2 s
    longer/0             the same run goes on until it has had `--longer` minutes
    late/before          the same streams until 120 s: drift is the most that any attribute has lost since 2 s
    late/longer/0        ... then all of that with the other seeds
    grpo/0, ppo/0, fork-grpo/0, best-of-n/0    for `--minutes` each
    grpo/1, ...          the other seeds
    forks                sixteen futures of one past against sixteen streams with a past each (results/tune_forks.json)
    kl-0/0               ... and late/ of any other, and gradient-first/0, if they are asked for

Every way has the same minutes of trying, rolling out, rewarding and learning and the same reward, learns from
128 streams a step (`gradient` from the 64 of 128 that missed most), and is exported by what its last step
left: nothing was chosen by the judge. What is judged is the exported file, in the half precision that ships.
`best-of-n` learns to repeat the best of each group, `gradient` follows the classifiers' gradients through
both steps of Brook, and the recipe's `edges`, with which it paid before; `gradient-first` goes through the
second step to the first alone. `kl-0` is fork-grpo with nothing that holds it to the model it was: what a
reward is then worth. Adherence is relative to renders of the same scenes, over prompts that training saw and
held-out ones together; edges are the pictures' crispness. `--set lr=1e-4` changes the recipe (give another
`--out` then). `python -m benchmarks.tuning_page` writes what was found into docs/tuning.md.

To ship what won: copy `out/tune/longer-0/brook.safetensors` over the one in `millstream/models/brook/`, write
its fingerprint (`millstream.core.files.file_digest`) into `files.py` there, and measure `millstream train
ranges --weights bundled` again. Its decoders stay: they were not tuned.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.report import write_report
from benchmarks.tuning.carried import CLASSIFIER, bring, merge_rows
from benchmarks.tuning.fork_times import FUTURES, PAST, fork_times
from benchmarks.tuning.rows import BEFORE, LATE, Row, Rows
from benchmarks.tuning.spent import SpentTime
from millstream.core.presets import find_model
from millstream.engine.device_choice import choose_device
from millstream.models.brook.files import BUNDLED, PATH
from millstream.models.registry import load_model
from millstream.ops.precision import working_dtype
from millstream.train.evaluate.adherence import judge_prompts
from millstream.train.evaluate.classifier import load_classifier
from millstream.train.evaluate.held_back import JudgeTraining, render_looks, train_judge
from millstream.train.export import BROOK, export
from millstream.train.recipe import RECIPES
from millstream.train.reward.rewards import RewardPlan
from millstream.train.rl.recipe import PolicyRecipe, read_policy_recipe
from millstream.train.rl.run import CURVE, PolicyReport, PolicyRun

BEGUN = time.perf_counter()
SAMPLED: dict[str, Any] = {
    "prompts_per_step": 16, "group": 8, "tried": 4, "rows_at_once": 32, "lr": 2e-5, "ema": 0.0, "ppo_clip": 0.2,
    "kl_coefficient": 0.01, "kl_target": 8.0, "kl_bound": 40.0,
}  # fmt: skip
"""In the place of the recipe's lines, for what compares futures. A tenth of a nat a step, most of it chance,
so the target is where it stays; the best of eight streams is 1.2 nats from all of them."""
LONGER = "longer"
CONTINUED = "gradient"
"""The way that goes on, and whose runs it does."""
WAYS: dict[str, dict[str, Any]] = {
    LONGER: {},
    CONTINUED: {},
    "grpo": SAMPLED | {"algorithm": "grpo", "fork": (0, 0)},
    "ppo": SAMPLED | {"algorithm": "ppo", "fork": (0, 0), "shared_start": False},
    "fork-grpo": SAMPLED | {"algorithm": "grpo"},
    "best-of-n": SAMPLED | {"algorithm": "best-of-n"},
    "gradient-first": {"learn_steps": (0,)},
    "kl-0": SAMPLED | {"algorithm": "grpo", "kl_coefficient": 0.0, "kl_target": 0.0},
}
COMPARED = ("grpo", "ppo", "fork-grpo", "best-of-n")
"""With `CONTINUED`, at equal time."""
JUDGE = "judge"
SECOND = "second"
SECOND_FILE = "second/judge.safetensors"
"""Classifiers, and what the recipe calls the second one."""
CLASSIFIERS = {
    JUDGE: JudgeTraining(),
    SECOND: JudgeTraining(architecture="convolutions", size=256, seed=11, steps=2500),
}
"""The second learns for as long as the bundled one did."""
FORKS = "forks"
SOON = 2.0
"""Seconds."""
NEVER = 1_000_000
KEPT_EVERY = 25
"""Steps between checkpoints: what a run that is cut off loses."""


def is_over(asked: argparse.Namespace) -> bool:
    """Return whether this call has used up its time."""
    return bool(time.perf_counter() - BEGUN >= 60 * asked.slice)


def classifier_path(name: str, asked: argparse.Namespace) -> Path:
    path: Path = asked.out / f"{name}{CLASSIFIER}"
    return path


def trained(name: str, asked: argparse.Namespace) -> Row:
    """A classifier, and how well it names what renders show."""
    plan = CLASSIFIERS[name]
    folder = asked.out / name
    if asked.miniature:
        plan = JudgeTraining(
            clips=2, steps=1, batch=2, size=16, examined=2, architecture=plan.architecture, seed=plan.seed
        )
    device = choose_device(asked.device)
    path, found = train_judge(plan, render_looks(plan, device), folder, device, lambda report: None)
    path.replace(classifier_path(name, asked))
    return {"named": found, "training": asdict(plan)}


def tuned(way: str, seed: int, asked: argparse.Namespace) -> Row | None:
    """Tunes one way for its minutes and exports it: what that took and how it went; None where `--slice`
    ended first."""
    recipe = recipe_of(way, seed, asked)
    minutes = asked.longer if way == LONGER else asked.minutes
    spec = find_model(recipe.model)
    folder = asked.out / f"{CONTINUED if way == LONGER else way}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    run = PolicyRun(recipe, spec, folder, Path.cwd(), choose_device(asked.device))
    spent = SpentTime(folder / CURVE)

    def report(said: PolicyReport) -> None:
        spent.add(said.step + 1, said.numbers)
        if said.step < 3 or said.step % 10 == 9:
            numbers = (
                f"{name} {said.numbers[name]:.4g}"
                for name in ("reward", "kl_reached")
                if name in said.numbers
            )
            print(f"  step {said.step + 1}, {spent.seconds:.0f} s: {', '.join(numbers)}", flush=True)

    run.train(
        report, lambda: spent.seconds >= 60 * minutes or is_over(asked)
    )  # one that had enough takes a step: it is loaded
    if spent.seconds < 60 * minutes:
        return None
    summary = spent.summary(recipe.batch)
    as_done = msgspec.structs.replace(recipe, steps=int(summary["steps"]))  # what the file says of itself
    export(as_done, spec, asked.out / f"{way}-{seed}", run.learnt())
    return {"spent": summary, "curve": spent.curve()}


def recipe_of(way: str, seed: int, asked: argparse.Namespace) -> PolicyRecipe:
    """The one that ships, changed in what the ways differ in."""
    never = {
        "steps": NEVER,
        "evaluate_every": NEVER,
        "judge": "",
        "evaluate_prompts": 1,
        "checkpoint_every": KEPT_EVERY,
    }
    small = {
        "height": 64,
        "width": 64,
        "prompts_per_step": 1,
        "group": 2,
        "tried": 1,
        "fork": (1, 1),
        "precision": "fp32",
    }
    recipe = read_policy_recipe(asked.recipe or RECIPES / "reward-brook.toml")
    wanted = msgspec.toml.decode("\n".join(asked.set).encode())
    rewards = [
        _as_here(each, asked)
        for each in recipe.rewards
        if each.kind != "edges" or "algorithm" not in WAYS[way]
    ]
    plain = msgspec.to_builtins(recipe) | {"rewards": msgspec.to_builtins(rewards)}
    changed = plain | WAYS[way] | (small if asked.miniature else {}) | wanted | never | {"seed": seed}
    return msgspec.convert(changed, PolicyRecipe)


def _as_here(reward: RewardPlan, asked: argparse.Namespace) -> RewardPlan:
    """By the second classifier where it lies here; of a miniature, at one glance."""
    if reward.classifier == SECOND_FILE:
        reward = msgspec.structs.replace(reward, classifier=str(classifier_path(SECOND, asked)))
    return msgspec.structs.replace(reward, views=1) if asked.miniature else reward


def base_of(asked: argparse.Namespace) -> Path:
    """The file that is tuned."""
    (weights,) = recipe_of(CONTINUED, 0, asked).weights
    return PATH if weights == BUNDLED else Path(weights)


def judged(
    weights: Path, asked: argparse.Namespace, count: int, seconds: tuple[float, ...]
) -> list[dict[str, Any]]:
    """By the held-back judge at the last of `seconds`: of prompts that training saw, and of held-out ones."""
    device = choose_device(asked.device)
    model = load_model(find_model("brook"), [str(weights)], device=device, dtype=working_dtype(device))
    judge = load_classifier(classifier_path(JUDGE, asked), device)
    config = recipe_of("grpo", 0, asked).stream(model.spec)
    both = (
        judge_prompts(model, judge, config=config, held_out=held_out, count=count, seconds=seconds)
        for held_out in (False, True)
    )
    return [asdict(each.moments[-1]) | {"real": each.real} for each in both]


def forks(asked: argparse.Namespace) -> Row:
    recipe = recipe_of("fork-grpo", 0, asked)
    spec = find_model("brook")
    device = choose_device(asked.device)
    engine = PolicyRun(recipe, spec, asked.out / FORKS, Path.cwd(), device).engine
    groups, futures, past, times = (
        (1, 2, 2, 1) if asked.miniature else (recipe.prompts_per_step, FUTURES, PAST, 4)
    )
    return {
        **fork_times(engine, groups=groups, chunks=recipe.chunks, futures=futures, past=past, times=times)
    }


def made(name: str, asked: argparse.Namespace) -> Row | None:
    """One row; None where `--slice` ended within it."""
    if name in CLASSIFIERS:
        return trained(name, asked)
    if name == FORKS:
        return forks(asked)
    of = name.removeprefix(f"{LATE}/")
    weights = base_of(asked) if of == BEFORE else asked.out / of.replace("/", "-") / BROOK
    if of != name:
        if not weights.exists():
            raise SystemExit(
                f"{name} needs the file that {of} left, {weights}: it was tuned elsewhere and did not come along"
            )
        return {"judged": judged(weights, asked, asked.late_count, (SOON, asked.late))}
    row: Row | None = {}
    if name != BEFORE:
        way, _, seed = name.partition("/")
        row = tuned(way, int(seed), asked)
    return None if row is None else {"judged": judged(weights, asked, asked.count, (SOON,)), **row}


def all_rows(seeds: int) -> list[str]:
    """List the names of all rows, the most important first."""
    rows = [JUDGE, SECOND, BEFORE]
    for seed in range(seeds):
        late = [f"{LATE}/{BEFORE}"] if seed == 0 else []
        rows += [f"{CONTINUED}/{seed}", f"{LONGER}/{seed}", *late, f"{LATE}/{LONGER}/{seed}"]
    for seed in range(seeds):
        rows += [f"{way}/{seed}" for way in COMPARED]
    return [*rows, FORKS, "kl-0/0"]


def known_rows(seeds: int) -> list[str]:
    of_models = [BEFORE, *(f"{way}/{seed}" for way in WAYS for seed in range(seeds))]
    return [*CLASSIFIERS, FORKS, *of_models, *(f"{LATE}/{each}" for each in of_models)]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="of each way and seed")
    parser.add_argument("--longer", type=float, default=4.0, help="of the way that goes on")
    parser.add_argument("--slice", type=float, default=1e9, help="minutes of this call; the next one goes on")
    parser.add_argument("--bring", type=Path, help="folder that has all that is done after every row")
    parser.add_argument("--from", type=Path, dest="brought", help="folder that --bring filled elsewhere")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--count", type=int, default=256, help="prompts of each kind that are judged")
    parser.add_argument("--late", type=float, default=120.0, help="second until which some go on")
    parser.add_argument("--late-count", type=int, default=128, help="prompts of each kind that do")
    parser.add_argument("--only", default="", help="rows, with commas between")
    parser.add_argument("--recipe", type=Path, help="another than reward-brook.toml")
    parser.add_argument("--set", action="append", default=[], help="a line of the recipe: lr=1e-4")
    parser.add_argument("--table", action="store_true", help="only write down what there is")
    parser.add_argument("--miniature", action="store_true", help="tiny rollouts, to see that it works")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("out/tune"))
    return parser.parse_args(arguments)


def report(asked: argparse.Namespace) -> None:
    """Writes the results, from the rows that there are, and brings all of it to where it was asked for."""
    rows = Rows(asked.out)
    names = known_rows(asked.seeds)
    small = "-miniature" if asked.miniature else ""
    recipe = msgspec.to_builtins(recipe_of("fork-grpo", 0, asked))
    times = {"minutes": asked.minutes, "longer": asked.longer, "late": asked.late}
    asked_for = {
        **times,
        "count": asked.count,
        "late_count": asked.late_count,
        "ways": WAYS,
        "recipe": recipe,
    }
    with contextlib.redirect_stdout(io.StringIO()):  # lines of rows are what is read meanwhile
        written = [write_report(f"tune{small}", asked_for, rows.table(tuple(WAYS), asked.seeds, names))]
        if forked := rows.read(FORKS):
            written.append(write_report(f"tune_forks{small}", {"recipe": recipe}, forked))
    if asked.bring is not None:
        bring(
            asked.out, asked.bring, names, [f"{LONGER}-{seed}" for seed in range(asked.seeds)], base_of(asked)
        )
        for path in written:
            shutil.copyfile(path, asked.bring / path.name)


def main(arguments: list[str] | None = None) -> None:
    asked = parse(arguments)
    rows = Rows(asked.out)
    wanted = asked.only.split(",") if asked.only else all_rows(asked.seeds)
    known = known_rows(asked.seeds)
    if unknown := set(wanted) - set(known):
        raise SystemExit(f"--only {', '.join(sorted(unknown))}: choose of {', '.join(known)}")
    if asked.brought is not None:
        merge_rows(asked.brought, asked.out, base_of(asked))
    if asked.table or any(name in rows for name in known):
        report(asked)  # a folder to bring things to may be empty
    for name in [] if asked.table else wanted:
        if name in rows or (name in CLASSIFIERS and classifier_path(name, asked).exists()):
            continue
        begun = time.perf_counter()
        row = None if is_over(asked) else made(name, asked)
        if row is None:
            print(f"{name}: there is more to do: call it again")
            return
        rows.keep(name, row | {"wall_s": time.perf_counter() - begun})
        print(f"{name}: {time.perf_counter() - begun:.0f} s; {rows.said_of(name, row)}", flush=True)
        report(asked)


if __name__ == "__main__":
    main()
