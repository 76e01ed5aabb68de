"""One run in our train: alone, as copies, with ZeRO 1 to 3. Losses stay the same, and bytes of a rank fall as
the planner predicts."""

from __future__ import annotations

from typing import Any

from course.chapters.lab_deepspeed.small_run import PARAMETERS, SmallRun, largest_difference, trained
from course.lab import say_state
from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks
from millstream.planner.training import learner_state
from millstream.train.parallel.plan import Data, ParallelPlan

WORLD = 2
WAYS: tuple[Data, ...] = ("replicas", "zero1", "zero2", "zero3", "fsdp")


def run(reader: Reader) -> None:
    guess = reader.predict(
        f"{PARAMETERS} parameters in float32, Adam, ZeRO-3 over {WORLD} ranks. How many kB of state has a rank?"
    )
    runs: dict[str, SmallRun] = on_ranks(all_ways, WORLD, timeout_s=180.0)[0]
    alone = trained(0, 1, ParallelPlan())
    planned = learner_state(PARAMETERS, 0, data="zero3", ranks=WORLD)
    whole = WORLD * planned.total / PARAMETERS
    by = f"planner.training.learner_state: {whole:g} bytes a parameter, half of them"
    reader.reveal(guess, planned.total / 1e3, by=by, tolerance=0.02)
    for name, found in runs.items():
        off = largest_difference(found.losses, alone.losses)
        assert off < 1e-4, f"{name} differs from one process by {off}"
        planned = learner_state(PARAMETERS, 0, data=name, ranks=WORLD)
        say_state(reader, name, found.state, planned)
        assert abs(found.state.weights / planned.weights - 1) < 0.01, f"{name}: {found.state} and {planned}"
        assert abs(found.state.optimizer / planned.optimizer - 1) < 0.01, (
            f"{name}: {found.state} and {planned}"
        )
        assert found.state.gradients <= 1.01 * planned.gradients, f"{name}: {found.state} and {planned}"
    reader.say(
        "ZeRO-1 sums whole gradients, which the planner counts; at the step our own has let go of what it "
        "does not need"
    )
    reader.say(f"losses of {len(alone.losses)} steps are those of one process, to within 1e-4, in every row")
    for name, found in runs.items():
        reader.measured(
            f"{name:10} a step of {1e3 * found.seconds:6.1f} ms; alone {1e3 * alone.seconds:.1f} ms"
        )


def all_ways(rank: int, world: int) -> dict[str, Any]:
    return {data: trained(rank, world, ParallelPlan(dp=world, data=data)) for data in WAYS}
