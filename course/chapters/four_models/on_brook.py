"""Four roles on Brook, by the train: streams are written by the serving generator, a formula of pixels
judges."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import replace

import torch

from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.core.presets import find_model
from millstream.core.schedule import noise_levels
from millstream.models.registry import load_model
from millstream.train.reward.analytic import brightness
from millstream.train.reward.clips import RewardClips
from millstream.train.rl.algorithms import PPO
from millstream.train.rl.learner import LearnerOptions
from millstream.train.rl.rollouts import RolloutEngine, RolloutPlan
from millstream.train.rl.steps import StepNoise

SIZE = 64
DEVICE = torch.device("cpu")
PROMPT = "a white boat on the sea at dawn"


def run(reader: Reader, steps: int = 2, group: int = 4) -> None:
    if not (1 <= steps <= 20 and 2 <= group <= 16):
        raise CourseError(f"--steps must be 1 to 20 and --group 2 to 16, got {steps} and {group}")
    torch.manual_seed(0)
    model = load_model(find_model("brook"), ["bundled"], device=DEVICE, dtype=torch.float32)
    config = replace(model.spec.stream, height=SIZE, width=SIZE)
    noise = StepNoise(levels=noise_levels(config.steps, shift=config.shift, warp=config.warp), last=0.1)
    guess = reader.predict(
        f"a chunk takes {len(noise.levels)} model calls, all of them random. How many decisions are learnt from?"
    )
    reader.reveal(
        guess,
        len(noise.learnt),
        by="a denoising step is a decision: a Gaussian around where the model would go",
    )
    actor = deepcopy(model.dit).requires_grad_(requires_grad=True)
    learner = PPO(
        actor,
        deepcopy(actor),
        noise,
        config,
        LearnerOptions(algorithm="ppo", steps=steps, lr=1e-6, kl_target=1.0),
        DEVICE,
    )
    engine = RolloutEngine(actor, model, config, noise, torch.float32)
    for step in range(steps):
        engine.load_weights(actor, learner.version)
        begun = time.perf_counter()
        made = engine.roll(RolloutPlan(prompts=(PROMPT,), group=group, chunks=1, seed=step))
        rolled = time.perf_counter()
        clips = RewardClips(pixels_BTCYX=engine.show(made), prompts=(PROMPT,) * group, fps=config.fps)
        reward = brightness(clips)
        judged = time.perf_counter()
        found = learner.learn(made, reward, torch.ones(group, dtype=torch.bool), group)
        learnt = time.perf_counter()
        reader.measured(
            f"step {step}: actor {rolled - begun:.1f} s, reward {judged - rolled:.1f} s, learning "
            f"{learnt - judged:.1f} s; "
            f"brightness {float(reward.mean()):.4f}, {found['kl']:.3g} nats, ratios off by "
            f"{found['ratio_off']:.1e}"
        )
        assert found["ratio_off"] < 1e-2, f"densities do not agree: {found['ratio_off']}"
        assert step or found["kl"] < 1e-6, f"the actor is not its reference at first: {found['kl']}"
    sizes = [sum(each.numel() for each in part.parameters()) for part in (actor, learner.critic)]
    reader.say(
        f"parameters: actor and reference {sizes[0]} each, critic {sizes[1]}, reward none: it is a formula"
    )
    reader.say(
        "two steps show that it runs, not that it learns: millstream tune, and docs/tuning.md with its "
        "results, do that"
    )
