"""Measure what rollouts that are one version behind cost, and what their correction regains, where the best
is known.

    python -m benchmarks.tune_behind --seeds 5

A tiny model's latents should have a mean of 0.5: the reward is minus the squared error of a stream. There are
three runs for each seed and learning rate, which differ only in this: rollouts by the newest weights; by the
version before, treated as new; and by the version before, with each step weighted by how much likelier it is
now, up to 2. The result is how far sampled streams are from the best, in the mean of the last steps and of
all: how soon they get there, and how steadily they stay.
"""

from __future__ import annotations

import argparse
import statistics
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch

from benchmarks.report import write_report
from millstream.core.presets import find_model
from millstream.models.registry import load_model
from millstream.train.rl.algorithms import GRPO
from millstream.train.rl.learner import LearnerOptions
from millstream.train.rl.rollouts import RolloutEngine, RolloutPlan, Trajectories
from millstream.train.rl.steps import StepNoise

TARGET = 0.5
GROUP = 16
LAST = 5
KINDS = {"on time": None, "behind": 0.0, "behind, corrected": 2.0}


def tiny_policy(options: LearnerOptions) -> tuple[RolloutEngine, GRPO]:
    """A model of toy size with the engine that rolls it out and the learner that trains it."""
    device = torch.device("cpu")
    model = load_model(find_model("wan-tiny"), ["random:3"], device=device, dtype=torch.float32)
    config = replace(model.spec.stream, height=32, width=32, window=6)
    noise = StepNoise(levels=(1000.0, 600.0), last=0.3)
    torch.manual_seed(0)
    actor = deepcopy(model.dit).requires_grad_(True)
    learner = GRPO(actor, deepcopy(actor), noise, config, options, device)
    return RolloutEngine(actor, model, config, noise, torch.float32), learner


def learnt(correction: float | None, *, seed: int, lr: float, steps: int) -> list[float]:
    """How far off the best the streams of each step are."""
    options: dict[str, Any] = {"asynchronous": correction is not None, "correction": correction or 0.0}
    engine, learner = tiny_policy(
        LearnerOptions(
            kl_coefficient=0.0,
            kl_target=0.0,
            kl_bound=1.0,
            steps=steps,
            lr=lr,
            minibatches=1,
            rows_at_once=GROUP,
            **options,
        )
    )
    known = torch.ones(GROUP, dtype=torch.bool)
    off = list[float]()
    ahead = None

    def rolled(step: int) -> Trajectories:
        return engine.roll(RolloutPlan(prompts=("sea",), group=GROUP, chunks=1, seed=1000 * seed + step))

    for step in range(steps):
        made = ahead or rolled(step)
        engine.load_weights(learner.actor, learner.version)
        ahead = rolled(step + 1) if correction is not None else None  # while the step is learnt from
        means = made.clean_BFCYX.mean(dim=(1, 2, 3, 4))
        off.append(abs(float(means.mean()) - TARGET))
        learner.learn(made, -(means - TARGET).square(), known, GROUP)
        engine.load_weights(learner.actor, learner.version)
    return off


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
