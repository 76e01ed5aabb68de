"""The run under DeepSpeed, stages 1 to 3 and offload: the losses of our train, and the bytes that a rank
holds."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from pathlib import Path
from typing import Any

from course.chapters.lab_deepspeed.small_run import BATCH, PARAMETERS, SmallRun, largest_difference, trained
from course.checking import load_answer
from course.lab import answer_in
from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.mesh.local_ranks import on_ranks
from millstream.planner.training import learner_state
from millstream.train.parallel.plan import ParallelPlan

WORLD = 2
WAYS = {"stage 1": (1, False), "stage 2": (2, False), "stage 3": (3, False), "stage 2, offload": (2, True)}


def run(reader: Reader, answer: str = "") -> None:
    """`answer`: your file, whose configurations are used instead of those of our solution."""
    if importlib.util.find_spec("deepspeed") is None:
        raise CourseError(
            "DeepSpeed is not installed: pip install millstream[deepspeed]; everything else of this lab runs "
            "without"
        )
    runs: dict[str, SmallRun] = on_ranks(all_stages, WORLD, answer_in(__file__, answer), timeout_s=900.0)[0]
    alone = trained(0, 1, ParallelPlan())
    for name, found in runs.items():
        off = largest_difference(found.losses, alone.losses)
        assert off < 1e-3, f"{name} differs from one process by {off}"
        planned = learner_state(PARAMETERS, 0, data=f"zero{WAYS[name][0]}", ranks=WORLD)
        kept = (
            f"optimiser {found.state.optimizer / 1e3:.0f} kB a rank, the planner says "
            f"{planned.optimizer / 1e3:.0f}"
        )
        reader.say(f"{name:18} losses of one process to within 1e-3; {kept}")
        assert abs(found.state.optimizer / planned.optimizer - 1) < 0.05, f"{name}: {found.state}, {planned}"
    reader.say("without a GPU offload has nowhere else to go: the optimiser is in host memory already")
    for name, found in runs.items():
        reader.measured(
            f"{name:18} a step of {1e3 * found.seconds:6.1f} ms; alone {1e3 * alone.seconds:.1f} ms"
        )


def all_stages(rank: int, world: int, path: Path) -> dict[str, Any]:
    logging.disable(logging.WARNING)  # it says a page about itself at every start
    warnings.simplefilter("ignore")
    answer = load_answer(path)
    found = dict[str, Any]()
    with contextlib.redirect_stdout(io.StringIO()):
        for name, (stage, offload) in WAYS.items():
            config = answer.deepspeed_config(stage, BATCH, world, 1, offload=offload, precision="fp32")
            found[name] = trained(rank, world, ParallelPlan(dp=world), config)
    return found
