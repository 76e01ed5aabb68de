"""Share of what `gradient` follows that passes from a chunk to later ones: Brook's streams of three chunks,
on any device.

python -m benchmarks.tuning.across_chunks --size 128

For each prompt and attribute: the gradient of its logarithm to all weights, and what is left of it, in norm
and direction, where every chunk is told of its own pictures alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import torch
from torch import Tensor

from millstream.core.presets import find_model
from millstream.engine.device_choice import choose_device
from millstream.train.evaluate.classifier import JUDGE, load_classifier
from millstream.train.loop import keyed_generator
from millstream.train.recipe import RECIPES
from millstream.train.reward.attributes import AttributeReward
from millstream.train.reward.clips import RewardClips
from millstream.train.rl.algorithms import RewardGradient
from millstream.train.rl.recipe import PolicyRecipe, read_policy_recipe
from millstream.train.rl.rollouts import RolloutPlan, Trajectories
from millstream.train.rl.run import PolicyRun

PROMPTS = (
    "a small green fish circling slowly on the sea at dusk in the rain",
    "a large blue kite rising slowly over the hills at dawn in clear weather",
)
VIEWS = 2


def one_chunk(made: Trajectories, here: slice) -> Trajectories:
    """Return the same streams with these frames alone to learn from; earlier frames become the past."""
    past = torch.cat([made.past_BFCYX, made.clean_BFCYX[:, : here.start]], dim=1)
    starts, ends = (tuple(each[:, here] for each in parts) for parts in (made.starts, made.ends))
    return replace(made, past_BFCYX=past, clean_BFCYX=made.clean_BFCYX[:, here], starts=starts, ends=ends)


def both_ways(learner: RewardGradient, made: Trajectories, frames: int) -> list[Tensor]:
    """Finished chunks, with gradients through the chunks after each, and within each alone."""
    rows = torch.arange(len(made), device=made.clean_BFCYX.device)
    parts = [
        one_chunk(made, slice(first, first + frames)) for first in range(0, made.clean_BFCYX.shape[1], frames)
    ]
    alone = [learner.finished(part, learner.steps(learner.actor, part, rows), rows) for part in parts]
    return [learner.finished(made, learner.steps(learner.actor, made, rows), rows), torch.cat(alone, dim=1)]


def gradient(worth: Tensor, weights: Sequence[Tensor]) -> Tensor:
    found = torch.autograd.grad(worth.sum(), weights, retain_graph=True, allow_unused=True)
    return torch.cat(
        [
            torch.zeros_like(w).flatten() if g is None else g.flatten()
            for w, g in zip(weights, found, strict=True)
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=256, help="of pictures")
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    device = choose_device(asked.device)
    recipe = msgspec.to_builtins(read_policy_recipe(RECIPES / "reward-brook.toml"))
    changes = {
        "algorithm": "gradient",
        "precision": "fp32",
        "judge": "",
        "height": asked.size,
        "width": asked.size,
    }
    with TemporaryDirectory() as folder:
        changed = msgspec.convert(recipe | changes, PolicyRecipe)
        run = PolicyRun(changed, find_model("brook"), Path(folder), Path.cwd(), device)
    assert isinstance(run.learner, RewardGradient)
    weights = [weight for weight in run.actor.parameters() if weight.requires_grad]
    judge = load_classifier(JUDGE, device)
    for seed, prompt in enumerate(PROMPTS):
        made = run.engine.roll(RolloutPlan(prompts=(prompt,), group=1, chunks=3, seed=seed))
        ways = both_ways(run.learner, made, run.config.frames_per_chunk)
        rows = torch.arange(1, device=device)
        pictures = [run.engine.paint(made, clean, rows) for clean in ways]
        clips = [RewardClips(pixels_BTCYX=each, prompts=(prompt,), fps=run.config.fps) for each in pictures]
        for name in ("thing", "motion"):
            reward = AttributeReward(judge, (name,), VIEWS)
            worths = [reward.log_worth(clip, keyed_generator(device, "x", seed)) for clip in clips]
            across, within = (gradient(worth, weights) for worth in worths)
            share = within.norm() / across.norm()
            cosine = torch.cosine_similarity(across, within, dim=0)
            print(
                f"{prompt}: {name}, log {worths[0].item():.2f}: norm {share:.0%}, cosine {cosine:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
