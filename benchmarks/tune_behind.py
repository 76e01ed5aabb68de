"""What rollouts cost that are one version behind, and what their correction gives back, where the best is known.

    python -m benchmarks.tune_behind --seeds 5

A tiny model's latents are to have a mean of 0.5: the reward is less the square of how far off a stream is. Three runs for each
seed and learning rate, alike but for this: rollouts by the newest weights; by the ones before, counted as if they were new; and
by the ones before, each step counting as much as it is likelier now, up to 2. Given is how far from the best sampled streams
are, in the mean of the last steps and of all: how soon it is there, and how steadily it stays.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch

from benchmarks.report import write_report
from millstream.trainer.policy.rollouts import RolloutPlan, Trajectories
from millstream.trainer.policy.steps import StepNoise
from tests.unit.trainer.policy.small_policy import LEVELS, policy

TARGET, GROUP, LAST = 0.5, 16, 5
KINDS = {"on time": None, "behind": 0.0, "behind, corrected": 2.0}


def learnt(correction: float | None, *, seed: int, lr: float, steps: int) -> list[float]:
    """How far off the best the streams of each step are."""
    options: dict[str, Any] = {"asynchronous": correction is not None, "correction": correction or 0.0}
    noise = StepNoise(levels=LEVELS, last=0.3)
    engine, learner = policy(noise, lr=lr, minibatches=1, rows_at_once=GROUP, **options)
    known, off, ahead = torch.ones(GROUP, dtype=torch.bool), list[float](), None

    def rolled(step: int) -> Trajectories:
        return engine.roll(RolloutPlan(prompts=("sea",), group=GROUP, chunks=1, seed=1000 * seed + step))

    for step in range(steps):
        made = ahead or rolled(step)
        engine.follow(learner.actor, learner.version)
        ahead = rolled(step + 1) if correction is not None else None  # while the step is learnt from
        means = made.clean_BFCYX.mean(dim=(1, 2, 3, 4))
        off.append(abs(float(means.mean()) - TARGET))
        learner.learn(made, -(means - TARGET).square(), known, GROUP)
        engine.follow(learner.actor, learner.version)
    return off


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-3, 6e-3])
    asked = parser.parse_args()
    found = dict[str, dict[str, dict[str, float | list[float]]]]()
    for lr in asked.rates:
        for name, correction in KINDS.items():
            runs = [learnt(correction, seed=seed, lr=lr, steps=asked.steps) for seed in range(asked.seeds)]
            last = [statistics.mean(run[-LAST:]) for run in runs]
            found.setdefault(f"lr {lr:g}", {})[name] = {
                "off_at_last": statistics.mean(last),
                "off_at_last_by_seed": last,
                "off_in_all": statistics.mean(statistics.mean(run) for run in runs),
            }
            print(lr, name, found[f"lr {lr:g}"][name], flush=True)
    write_report("tune_behind", vars(asked) | {"target": TARGET, "group": GROUP, "last": LAST}, found)


if __name__ == "__main__":
    main()
