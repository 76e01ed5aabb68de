"""Effect of the clip: steps by the same voyages go on until the policy has moved far enough, and no
further."""

from __future__ import annotations

import torch

from course.chapters.ppo.learning import METHODS, RATE, advantages, policy_loss
from course.chapters.ppo.river import Steersman, sail
from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.train.rl.objective import clipped_policy

PPO = METHODS[-1]
CLIP = 0.2
FAR = 1.5
MOST = 0.95
"""The clip, a ratio beyond it, and the share of ratios that is looked at."""


def run(reader: Reader, epochs: int = 20) -> None:
    if not 2 <= epochs <= 100:
        raise CourseError(f"--epochs must be 2 to 100, got {epochs}")
    zero = torch.zeros(1, 1)
    one = torch.ones(1, 1)
    guess = reader.predict(
        f"advantage 1, clip {CLIP}, a ratio of {FAR}. What is the objective, which is followed upwards?"
    )
    found = -clipped_policy(zero + torch.log(torch.tensor(FAR)), zero, one, one, CLIP).loss
    reader.reveal(
        guess,
        float(found),
        by="train.policy.objective.clipped_policy: no gain beyond 1 + clip",
        tolerance=0.01,
    )
    for ratio, advantage in ((0.5, 1.0), (0.5, -1.0), (FAR, -1.0)):
        found = -clipped_policy(zero + torch.log(torch.tensor(ratio)), zero, advantage * one, one, CLIP).loss
        reader.say(f"ratio {ratio:g}, advantage {advantage:+g}: {float(found):+.2f}")
    clipped = f"clip {CLIP}"
    moved = {name: furthest(epochs, clip) for name, clip in ((clipped, CLIP), ("no clip", 0.0))}
    for name, ratios in moved.items():
        most = sorted(ratios)[int(MOST * len(ratios))]
        reader.measured(
            f"{name:9} {epochs} steps by the same voyages: ratios reach {max(ratios):6.2f}, {MOST:.0%} are "
            f"below {most:.2f}"
        )
    assert max(moved["no clip"]) > max(moved[clipped]), "what is clipped does not push on"
    reader.say(
        "ratios pass the clip: momentum carries on, and a decision is moved by the others in its state"
    )


def furthest(epochs: int, clip: float) -> list[float]:
    """Ratios of all decisions after so many steps by one batch."""
    steersman = Steersman()
    voyages = sail(steersman, 64, torch.Generator().manual_seed(0))
    method = type(PPO)(name="", standard=True, clip=clip)
    advantage, _ = advantages(steersman, voyages, method)
    optimiser = torch.optim.Adam([steersman.likes], lr=RATE)
    for _ in range(epochs):
        optimiser.zero_grad()
        policy_loss(steersman, voyages, advantage, method).backward()
        optimiser.step()
    with torch.no_grad():
        ratio = (steersman.log_probs(voyages.state_BT, voyages.action_BT) - voyages.log_BT).exp()
    return [float(each) for each in ratio.flatten()]
