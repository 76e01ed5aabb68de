"""Memory held during a step: models, sentences, activations, gradients, the optimiser. Counted, not
estimated."""

from __future__ import annotations

from typing import Any

import torch

from course.chapters.four_models.preferences import learnt_reward
from course.chapters.four_models.roles import Roles
from course.chapters.rl_system.memory_meter import MemoryMeter, drawn
from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.train.rl.control import DivergenceControl


class MeteredRoles(Roles):
    """Tells a meter which phase begins."""

    meter: MemoryMeter

    def _advantages(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.meter.phase("advantages")
        return super()._advantages(*args, **kwargs)

    def _learn(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.meter.phase("learning")
        return super()._learn(*args, **kwargs)


def run(reader: Reader, sentences: int = 24) -> None:
    if not 2 <= sentences <= 64:
        raise CourseError(f"--sentences must be 2 to 64, got {sentences}")
    roles = MeteredRoles(learnt_reward()[0], DivergenceControl(0.1, 1.0, 10.0))
    made = torch.Generator().manual_seed(0)
    count = sum(each.numel() for each in roles.actor.parameters())
    guess = reader.predict(
        f"{count} parameters each, float32, two models with gradients and Adam, two without. Bytes a "
        "parameter, of all?"
    )
    reader.reveal(
        guess,
        16 + 16 + 4 + 4,
        by="4 for a weight, 4 for its gradient, 8 for Adam; a frozen one has the weight alone",
    )
    with MemoryMeter() as meter:
        roles.meter = meter
        held = meter.hold(roles.actor, roles.critic, roles.reward, roles.reference)
        steps = []
        for _ in range(2):  # the optimiser's state comes with the first step
            meter.peaks.clear()
            meter.history.clear()
            meter.phase("writing and asking")
            roles.step(sentences, made)
            meter.phase("between steps")
            steps.append((dict(meter.peaks), meter.alive))
    peaks, after = steps[1]
    reader.say(f"weights of four models: {held / 1e6:.2f} MB")
    for name, peak in peaks.items():
        reader.measured(f"{name:20} peak {peak / 1e6:7.2f} MB")
    reader.measured(f"over the step, operator by operator: “{drawn(meter.history)}”")
    reader.measured(
        f"held between steps: {after / 1e6:.2f} MB, {after / count:.0f} bytes a parameter of one model"
    )
    assert 30 * count < after < 46 * count, (
        f"{after / count} bytes a parameter: weights and Adam, no gradients"
    )
    assert peaks["learning"] == max(peaks.values()), f"{peaks}"
    reader.say("learning holds most: activations of the actor and gradients, on top of all that stays")
    reader.say(
        "while it is writing, the optimiser lies idle; while it learns, the cache does: what takes turns can "
        "share memory"
    )
