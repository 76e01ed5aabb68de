"""Messages of growing size: at first time does not grow at all, then bandwidth stops growing."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks

SIZES = tuple(1 << power for power in range(10, 26, 3))


def run(reader: Reader, tries: int = 30) -> None:
    seconds = on_ranks(there_and_back, 2, SIZES, tries)[0]
    reader.say(f"{'bytes':>10}{'one way ms':>12}{'GB/s':>9}")
    rates = {size: size / seconds[size] / 1e9 for size in SIZES}
    best = max(rates.values())
    for size in SIZES:
        reader.measured(f"{size:10}{1e3 * seconds[size]:12.3f}{rates[size]:9.3f}")
    reader.measured(f"the smallest message reaches {rates[SIZES[0]] / best:.1%} of the best bandwidth")
    assert rates[SIZES[0]] < 0.2 * best, f"small messages should be held back by latency, got {rates}"


def there_and_back(rank: int, world: int, sizes: tuple[int, ...], tries: int) -> dict[int, float]:
    """Half the time there and back, the quickest of the tries: no clocks need to agree."""
    return {size: min(_round_trip(torch.zeros(size // 4), rank) for _ in range(tries)) / 2 for size in sizes}


def _round_trip(x: torch.Tensor, rank: int) -> float:
    begin = time.perf_counter()
    for sender in (0, 1):
        if rank == sender:
            dist.send(x, dst=1 - rank)
        else:
            dist.recv(x, src=1 - rank)
    return time.perf_counter() - begin
