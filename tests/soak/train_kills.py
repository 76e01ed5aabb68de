"""Training killed at random steps and begun again: it ends at the bits it would have ended at.

    python -m tests.soak.train_kills --kills 20

Each life of a run (four ranks that shard everything, over gloo) is killed (SIGKILL, one rank, then all) at a
random moment, after its first checkpoint or one of the next few; the next life goes on from the newest. The
last life ends by itself, and its weights are held against those of a run that nobody killed.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from millstream.train.parallel.plan import ParallelPlan
from tests.dist.ranks import run_ranks, started
from tests.soak.report import write_report
from tests.soak.train_equality import SAVE_EVERY, Trained, train

PLANS = {"ZeRO 3": ParallelPlan(dp=4, data="zero3"), "FSDP2 x tensor": ParallelPlan(dp=2, tp=2, data="fsdp")}
STEPS_A_LIFE = 12
PATIENCE_S = 60.0
MOST_SAVES = 6


def live(plan: ParallelPlan, folder: Path, steps: int, rng: random.Random) -> int:
    """One life that is cut short; the steps that were done by then, as far as they were kept."""
    wanted = _newest(folder) + SAVE_EVERY * rng.randint(1, MOST_SAVES)
    with started(train, plan.world_size, "tiny", plan, steps, folder) as ranks:
        until = time.monotonic() + PATIENCE_S
        while _newest(folder) < wanted and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.5))  # so that kills fall into steps, into saves and between them
        ranks.kill(rng.randrange(plan.world_size))
    return _newest(folder)


def run(plan: ParallelPlan, kills: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    kept = list[int]()
    with tempfile.TemporaryDirectory(prefix="millstream-train-kills-") as folder:
        for _ in range(kills):
            kept.append(live(plan, Path(folder), 1_000_000, rng))
        steps = kept[-1] + STEPS_A_LIFE
        ended: Trained = run_ranks(
            train, plan.world_size, "tiny", plan, steps, Path(folder), timeout_s=600.0
        )[0]
        left_behind = sorted(path.name for path in Path(folder).iterdir() if path.name.startswith("."))
    whole: Trained = run_ranks(train, plan.world_size, "tiny", plan, steps, timeout_s=600.0)[0]
    differ = [name for name, weight in whole.weights.items() if not torch.equal(weight, ended.weights[name])]
    return {
        "kills": kills,
        "steps": steps,
        "kept_at_each_kill": kept,
        "saves_of_each_life": [(after - before) // SAVE_EVERY for before, after in pairwise([0, *kept])],
        "parameters_that_differ": differ,
        "losses_of_the_last_life_are_the_same": ended.losses == whole.losses[-len(ended.losses) :],
        "half_written_checkpoints_left": left_behind,
    }


def _newest(folder: Path) -> int:
    return max((int(path.name[5:]) for path in folder.glob("step-*")), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = {name: run(plan, options.kills, options.seed) for name, plan in PLANS.items()}
    write_report("train_kills", {"kills": options.kills, "seed": options.seed}, found)


if __name__ == "__main__":
    main()
