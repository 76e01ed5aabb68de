"""A collective that has begun is not done. `wait` says when it is; a barrier does not."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks


def run(reader: Reader, megabytes: int = 64, tries: int = 4) -> None:
    answers = on_ranks(barrier_then_look, 2, megabytes, tries)
    reader.say(
        f"an all-reduce of {megabytes} MB was begun, then a barrier was passed, then we looked whether the "
        "sum is there"
    )
    other, same = (sum(looks[place] for looks, _ in answers) for place in (0, 1))
    reader.measured(f"barrier of another group: not done in {other} of {2 * tries} looks")
    reader.measured(f"barrier of the same group: not done in {same} of {2 * tries} looks")
    assert other > 0, "the sum was there before the barrier every time; try --megabytes 256"
    assert all(right for _, right in answers), "after wait the sum is right"
    reader.say("after wait() it was done, and right, every time")
    reader.say("a barrier says that all ranks came to this line; wait says that this result may be read")
    reader.say(
        "gloo's barrier happens to wait for what its own group has begun, which hides the mistake until "
        "groups differ"
    )


def barrier_then_look(rank: int, world: int, megabytes: int, tries: int) -> tuple[tuple[int, int], bool]:
    """Count how often the sum was not there after a barrier, of another group and of its own; whether it was
    right after `wait`."""
    unfinished = [0, 0]
    right = True
    for place, group in enumerate((dist.new_group(), dist.group.WORLD)):
        for _ in range(tries):
            x = torch.ones(megabytes * 2**20 // 4)
            work = dist.all_reduce(x, async_op=True)
            dist.barrier(group)
            unfinished[place] += not work.is_completed()
            work.wait()
            right &= bool((x == world).all())
    return (unfinished[0], unfinished[1]), right
