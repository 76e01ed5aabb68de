"""Without a price for distance the actor finds what the reward model likes and nobody else does."""

from __future__ import annotations

import torch

from course.chapters.four_models.learning_to_please import BEYOND, JUDGED, SENTENCES, TARGET
from course.chapters.four_models.preferences import learnt_reward
from course.chapters.four_models.roles import Roles, write
from course.confidence import of_share
from course.reader import Reader
from course.tinylm.text import is_sentence
from millstream.core.errors import CourseError
from millstream.train.rl.control import DivergenceControl, Evaluated, have_parted

EVERY = 5
LR = 1.5e-3


def run(reader: Reader, steps: int = 20) -> None:
    if not 10 <= steps <= 200:
        raise CourseError(f"--steps must be 10 to 200, got {steps}")
    parted = dict[str, bool]()
    for name, control in (
        ("free", DivergenceControl(0.0, 0.0, BEYOND)),
        ("held", DivergenceControl(0.3, TARGET, BEYOND)),
    ):
        roles = Roles(learnt_reward()[0], control, lr=LR)
        made = torch.Generator().manual_seed(0)
        found = [evaluated(roles, 0)]
        far = 0.0
        for step in range(1, steps + 1):
            far = roles.step(SENTENCES, made)["kl"]
            if step % EVERY == 0:
                found.append(evaluated(roles, step))
        course = ", ".join(f"{each.judge:.0%}" for each in found)
        low, high = of_share(round(JUDGED * found[-1].judge), JUDGED)
        reader.measured(
            f"{name}: reward {found[0].reward:+.2f} to {found[-1].reward:+.2f}, {far:.1f} nats away"
        )
        reader.measured(f"{name}: sentences of the grammar {course}; at last 95% in {low:.0%} to {high:.0%}")
        reader.measured(
            f"{name}: for example “{write(roles.actor, 1, torch.Generator().manual_seed(3)).texts[0]}”"
        )
        parted[name] = have_parted(found, tolerance=0.4, patience=1)
    assert parted == {"free": True, "held": False}, f"{parted}"
    reader.say("symptom: the reward rises and rises; nobody looks at the text")
    reader.say(
        "tool: a judge that is never learnt from; train.policy.control.have_parted says when reward and "
        "judge part"
    )
    reader.say("fix: a price for distance, a bound on it, and stopping where the judge was best")


@torch.no_grad()
def evaluated(roles: Roles, step: int) -> Evaluated:
    """By the reward that it learns from, and by the grammar, which it never sees."""
    made = write(roles.actor, JUDGED, torch.Generator().manual_seed(1))
    texts = made.texts
    return Evaluated(
        step, float(roles.reward.at_the_end(made).mean()), sum(map(is_sentence, texts)) / len(texts)
    )
