"""Densities of another policy than the one that sampled: PPO then follows ratios that mean nothing."""

from __future__ import annotations

import torch

from course.chapters.ppo.learning import METHODS, advantages, policy_loss
from course.chapters.ppo.river import Steersman, sail
from course.reader import Reader

PPO = METHODS[-1]


def run(reader: Reader) -> None:
    sampler = Steersman()
    learner = Steersman()
    with torch.no_grad():
        learner.likes[:, 2] += 2.0  # the learner has moved on; whoever sampled was not told
    voyages = sail(sampler, 64, torch.Generator().manual_seed(0))
    for name, actor in (("weights that sampled", sampler), ("weights of another version", learner)):
        ratio = (actor.log_probs(voyages.state_BT, voyages.action_BT) - voyages.log_BT).exp()
        off = float((ratio - 1).detach().abs().max())
        advantage, _ = advantages(actor, voyages, PPO)
        loss = policy_loss(actor, voyages, advantage, PPO)
        loss.backward()
        silent = float((actor.likes.grad == 0).all(dim=1).float().mean())  # type: ignore[union-attr]
        reader.measured(
            f"{name:27} first ratio off by {off:6.2f}; {silent:4.0%} of the states get no gradient"
        )
        assert (off < 1e-6) == (actor is sampler), f"{name}: {off}"
    reader.say("symptom: no error; learning is slow or goes astray")
    reader.say(
        "tool: the ratio before the first step must be 1; the train reports it as ratio_off and refuses "
        "other versions"
    )
    reader.say(
        "fix: weights are handed over before sampling, with a version that is checked (PolicyLearner.learn)"
    )
