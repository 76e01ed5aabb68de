"""Ways to share out a large model: what a rank holds and how long it waits, for several ways to use the same
GPUs."""

from __future__ import annotations

from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.planner.bubbles import bubble
from millstream.planner.training import Sharding, training_state

WAYS = ((1, 1), (8, 1), (1, 8), (8, 2), (8, 4), (8, 8))
"""Tensor and pipeline parallel; data parallel takes the rest."""


def run(
    reader: Reader, billions: float = 70.0, gpus: int = 64, parts: int = 32, memory: float = 139.8
) -> None:
    if billions <= 0 or parts < 1 or gpus < 64 or gpus % 64:
        raise CourseError(
            f"--gpus must be a multiple of 64, --billions and --parts positive, got {gpus}, {billions:g} and "
            f"{parts}"
        )
    guess = reader.predict(
        f"{billions:g} billion parameters, tp 8 and pp 8 on {gpus} GPUs, Adam, ZeRO-1. How many GB of state "
        "has a GPU?"
    )
    reader.reveal(
        guess, state_gb(billions, 8, 8, gpus), by="planner.training.training_state of a 64th", tolerance=0.1
    )
    reader.say(
        f"{'tp':>4}{'pp':>4}{'dp':>4}{'state GB':>10}{'waits':>8}  fits in {memory:g} GiB, before activations"
    )
    for tp, pp in WAYS:
        state = state_gb(billions, tp, pp, gpus)
        waiting = bubble("1f1b", pp, parts)
        fits = "yes" if state * 1e9 < memory * 2**30 else "no"
        reader.say(f"{tp:4}{pp:4}{gpus // (tp * pp):4}{state:10.1f}{waiting:8.1%}  {fits}")
        assert state >= 16 * billions / gpus - 1e-6, "nobody holds less than an equal share of everything"
    reader.say(
        "tensor parallel first, up to a machine; then as few stages as fit; data parallel with the rest"
    )


def state_gb(billions: float, tp: int, pp: int, gpus: int) -> float:
    """Return the gigabytes on one GPU: its part of the model, and the optimiser sharded over the GPUs that
    hold the same part."""
    part = int(billions * 1e9 / (tp * pp))
    return training_state(part, Sharding(zero=1, shards=gpus // (tp * pp))).total / 1e9
