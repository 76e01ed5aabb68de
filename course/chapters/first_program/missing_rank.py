"""A rank that never starts. The others cannot know: they wait until a time limit tells them."""

from __future__ import annotations

import time

from course.chapters.first_program.verify_setup import add_one
from course.reader import Reader
from millstream.core.errors import RankRaised
from millstream.mesh.local_ranks import on_ranks


def run(reader: Reader, world: int = 3, limit: float = 2.0) -> None:
    absent = world - 1
    begun = time.monotonic()
    try:
        on_ranks(add_one, world, missing=[absent], group_timeout_s=limit)
    except RankRaised as error:
        waited = time.monotonic() - begun
        assert waited >= limit, f"gave up after {waited} s"
        reader.say(
            f"rank {absent} of {world} was never started; another one gave up, with "
            f"{error.problem.split(':')[0]}"
        )
        reader.measured(
            f"all of this took {waited:.1f} s, of which {limit:g} s are the limit that init_process_group "
            "was given"
        )
    else:
        raise AssertionError("ranks met without one of them")
    reader.say(
        "cure: a limit that fits the slowest start, and a launcher that ends all ranks when one fails, as "
        "torchrun does"
    )
