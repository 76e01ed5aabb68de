"""The mean of rows that lie on several ranks. A mean of means is wrong as soon as shares differ; sums and
counts are not."""

from __future__ import annotations

import torch
import torch.distributed as dist

from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks


def run(reader: Reader, world: int = 3) -> None:
    whole = torch.cat([rows_of(rank) for rank in range(world)]).mean().item()
    guess = reader.predict(
        f"rank r holds r+1 numbers, all equal to r. What is the mean of all numbers on {world} ranks?"
    )
    answers = on_ranks(both_means, world)
    reader.reveal(guess, whole, by="torch.mean of all rows in one process", tolerance=0.01)
    for rank, (of_means, right) in enumerate(answers):
        assert abs(right - whole) < 1e-6, f"rank {rank} has {right}, one process has {whole}"
        reader.say(f"rank {rank}: mean of means {of_means:.4f}, sum over count {right:.4f}")
    assert world == 1 or abs(answers[0][0] - whole) > 0.1, (
        "shares differ here, so a mean of means must be off"
    )


def rows_of(rank: int) -> torch.Tensor:
    return torch.full((rank + 1,), float(rank))


def both_means(rank: int, world: int) -> tuple[float, float]:
    mine = rows_of(rank)
    of_means = mine.mean()
    dist.all_reduce(of_means)
    sum_and_count = torch.stack([mine.sum(), torch.tensor(float(len(mine)))])
    dist.all_reduce(sum_and_count)  # one collective for both numbers
    return float(of_means / world), float(sum_and_count[0] / sum_and_count[1])
