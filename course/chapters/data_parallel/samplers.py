"""Rows that a rank sees: every row once, as far as that divides, and another order in every epoch, if one
says so."""

from __future__ import annotations

from collections import Counter

from torch.utils.data import DistributedSampler

from course.reader import Reader
from millstream.core.errors import CourseError


def run(reader: Reader, rows: int = 10, world: int = 4) -> None:
    if min(rows, world) < 1:
        raise CourseError(f"--rows and --world must be 1 or more, got {rows} and {world}")
    guess = reader.predict(f"{rows} rows over {world} ranks. How many rows does each rank get in an epoch?")
    shares = [rows_of(rank, rows, world, epoch=0) for rank in range(world)]
    reader.reveal(guess, len(shares[0]), by="rounded up, so that all ranks take equally many steps")
    for rank, share in enumerate(shares):
        reader.say(f"rank {rank}: rows {' '.join(map(str, share))}")
    seen = Counter(row for share in shares for row in share)
    assert set(seen) == set(range(rows)), "no row is left out"
    assert {len(share) for share in shares} == {-(-rows // world)}, "ranks take equally many steps"
    twice = sorted(row for row, count in seen.items() if count > 1)
    reader.say(
        f"seen twice: {' '.join(map(str, twice)) or 'none'}; without them some rank would miss a step and "
        "all would wait"
    )
    assert rows_of(0, rows, world, epoch=0) == shares[0], "the same epoch is in the same order"
    later = [rows_of(rank, rows, world, epoch=1) for rank in range(world)]
    reader.say(
        f"rank 0 in the next epoch: {' '.join(map(str, later[0]))}; who forgets set_epoch gets "
        f"{' '.join(map(str, shares[0]))}"
    )


def rows_of(rank: int, rows: int, world: int, epoch: int) -> list[int]:
    sampler = DistributedSampler(range(rows), num_replicas=world, rank=rank, shuffle=True, seed=0)  # type: ignore[arg-type,var-annotated]
    sampler.set_epoch(epoch)
    return list(sampler)
