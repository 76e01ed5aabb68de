"""One rank is slower than the others, and all of them become as slow as it is. Which one? Time what each does
by itself."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from course.reader import Reader
from millstream.core.errors import CourseError
from millstream.mesh.local_ranks import on_ranks
from millstream.train.finetune.stragglers import IN_A_ROW, Stragglers


def run(reader: Reader, world: int = 3, slow: int = 1, work: float = 0.1, times: float = 3.0) -> None:
    if not 0 <= slow < world or times < 2:
        raise CourseError(
            f"--slow must be one of {world} ranks and --times 2 or more, got {slow} and {times:g}"
        )
    steps = f"{world - 1} ranks work {work:g} s a step and one works {times * work:g} s"
    guess = reader.predict(f"{steps}; each step ends in a sum. How many s is a step?")
    answers = on_ranks(steps_of, world, slow, work, times)
    longest = max(work, times * work)
    reader.reveal(guess, longest, by="the slowest rank", tolerance=0.1)
    looks = Stragglers()
    for step in range(IN_A_ROW):
        looks.look([own[step] for own, _ in answers])
    for rank, (own, whole) in enumerate(answers):
        assert min(whole) >= longest, (
            f"rank {rank}: a step of {min(whole)} s is shorter than the slowest rank's work"
        )
        reader.measured(f"rank {rank}: by itself {min(own):.2f} s, a step {min(whole):.2f} s")
    reader.say(
        "symptom: every rank's step is as long; in a trace the fast ones show long all-reduces, and the "
        "network looks guilty"
    )
    assert set(looks.slow) == {slow}, f"rank {slow} is slow, found {looks.slow}"
    reader.say(f"tool: train.tuning.stragglers looks at what ranks take by themselves, and names rank {slow}")
    reader.say(
        "fix: look at that rank alone (another program, a hot card, a slow disk); mend it, replace it, or "
        "give it less"
    )


def steps_of(rank: int, world: int, slow: int, work: float, times: float) -> tuple[list[float], list[float]]:
    """Return the seconds this rank took by itself in each step, and those of the whole step."""
    own = list[float]()
    whole = list[float]()
    dist.barrier()
    for _ in range(IN_A_ROW):
        begin = time.perf_counter()
        time.sleep(work * (times if rank == slow else 1))
        own.append(time.perf_counter() - begin)
        dist.all_reduce(torch.ones(()))
        whole.append(time.perf_counter() - begin)
    return own, whole
