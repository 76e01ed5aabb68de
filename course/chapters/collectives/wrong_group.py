"""A collective on a group that this rank is not in. Bare torch goes on with a number that nobody added to;
ours refuse."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

from course.reader import Reader
from millstream.core.errors import RankRaised
from millstream.mesh.local_ranks import on_ranks
from millstream.parallel.collective_calls import CollectiveRecord
from millstream.parallel.collectives import RankGroup


def run(reader: Reader) -> None:
    sums = on_ranks(bare, 3)
    assert sums == [2.0, 2.0, 1.0], f"ranks 0 and 1 sum, rank 2 does not: {sums}"
    reader.say(f"bare torch: a sum of ones on the group of ranks 0 and 1 leaves {sums} on ranks 0, 1, 2")
    reader.say(
        "symptom: rank 2 asked for the sum too, got no error, and goes on with a number that nobody added to"
    )
    try:
        on_ranks(guarded, 3)
    except RankRaised as error:
        refused = error.rank
        said = str(error)
    else:
        raise AssertionError("a rank outside of the group was not refused")
    assert refused == 2, f"rank {refused} was refused"
    reader.say(f"tool: RankGroup knows its members, and says: {said}")
    reader.say("fix: only members call; every rank makes every group, and calls those that it is in")


def bare(rank: int, world: int) -> float:
    pair = dist.new_group([0, 1])
    x = torch.ones(())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns, once, in the log of one rank of many
        dist.all_reduce(x, group=pair)
    return float(x)


def guarded(rank: int, world: int) -> float:
    handle = dist.new_group([0, 1])
    pair = RankGroup("pair", "training", (0, 1), rank, handle if rank < 2 else None, CollectiveRecord())
    return float(pair.sum(torch.ones(()), "ones"))
