"""What tests do with a scheduler: set it before a device on paper, give turns, land chunks, read its
metrics."""

from __future__ import annotations

import random

from millstream.serving.scheduler import Scheduler
from millstream.serving.turns import Run, SessionMetrics, Terms
from millstream.session.pacing import Pace
from tests.unit.simulated_device import SimulatedDevice

PACE = Pace(fps=16, chunk_frames=12)
TERMS = Terms(pace=PACE)


def device(
    costs: dict[str, float], *, jitter: float = 0.0, first_frames: int = 12, seed: int = 0
) -> SimulatedDevice:
    """A device on which a chunk of each session takes so long, more or less."""
    chance = random.Random(seed)
    return SimulatedDevice(
        Scheduler(),
        seconds=lambda names: costs[names[0]] * (1 + jitter * chance.uniform(-1, 1)),
        first_frames=first_frames,
    )


def metrics(simulated: SimulatedDevice) -> dict[str, SessionMetrics]:
    return {each.session_id: each for each in simulated.scheduler.metrics(simulated.now).sessions}


def run_of(scheduler: Scheduler, now: float) -> tuple[str, ...]:
    turn = scheduler.next(now)
    assert isinstance(turn, Run), f"expected a run, got {turn}"
    return turn.session_ids


def land(
    scheduler: Scheduler, session_id: str, now: float, *, frames: int = 12, seconds: float = 0.1
) -> None:
    assert run_of(scheduler, now - seconds) == (session_id,)
    scheduler.finished(session_id, now, frames=frames, seconds=seconds)
