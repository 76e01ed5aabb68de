"""One rank leaves out a collective. From then on it is one behind, and its numbers go into the wrong sums.

The tool is a record of what every rank called, which the engine keeps anyway: the first line that differs is
the mistake.
"""

from __future__ import annotations

from itertools import zip_longest

import torch
import torch.distributed as dist

from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks
from millstream.parallel.collective_calls import CollectiveRecord
from millstream.parallel.collectives import RankGroup

GRADIENTS = {"weight": 1.0, "bias": 100.0, "scale": 10000.0}
"""Gradients, equal on both ranks, so that a sum shows what went into it."""


def run(reader: Reader) -> None:
    answers = on_ranks(sums_of, 2)
    for rank, (sums, _) in enumerate(answers):
        reader.say(f"rank {rank}: " + ", ".join(f"{name} {value:g}" for name, value in sums.items()))
    reader.say(
        "symptom: no hang and no error, but wrong sums: 'bias' of one rank was added to 'weight' of the other"
    )
    assert answers[0][0]["weight"] == 101.0, f"rank 0 summed {answers[0][0]}"
    records = [calls for _, calls in answers]
    at = next(place for place, pair in enumerate(zip_longest(*records)) if len(set(pair)) > 1)
    mine, theirs = (calls[at] for calls in records)
    reader.say(
        f"tool: the records of both ranks differ first in call {at + 1}: {mine!r} on rank 0, {theirs!r} on "
        "rank 1"
    )
    assert {mine, theirs} == {"weight", "bias"}, f"they differ in {mine} and {theirs}"
    reader.say("fix: every rank calls the same collectives in the same order, whatever its own data are")


def sums_of(rank: int, world: int) -> tuple[dict[str, float], list[str]]:
    """Rank 1 forgets the weight; both make two sums."""
    group = RankGroup("pair", "training", (0, 1), rank, dist.group.WORLD, CollectiveRecord())
    names = ("weight", "bias") if rank == 0 else ("bias", "scale")
    sums = {name: float(group.sum(torch.tensor(GRADIENTS[name]), name)) for name in names}
    return sums, [called.what for called in group.record.last]
