"""A message that is on its way while this rank computes. Then the longer of the two counts, not their sum.

Both the computing and the sender's delay are sleeps, so that they take equally long on every machine.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from course.reader import Reader
from millstream.mesh.local_ranks import on_ranks


def run(reader: Reader, compute: float = 0.3, delay: float = 0.2) -> None:
    needs = f"a message needs {delay:g} s to come, and there are {compute:g} s of computing to do"
    guess = reader.predict(f"{needs}. How many s do both take, overlapped?")
    (waiting, overlapped), _ = on_ranks(both_ways, 2, compute, delay)
    reader.reveal(guess, max(compute, delay), by="the longer of the two", tolerance=0.1)
    reader.measured(f"receive, then compute: {waiting:.2f} s")
    reader.measured(f"begin to receive, compute, wait: {overlapped:.2f} s")
    assert waiting >= compute + delay, (
        f"one after the other takes {compute + delay} s at least, got {waiting}"
    )
    assert overlapped >= max(compute, delay), f"{overlapped} s is quicker than its parts"
    assert overlapped < waiting, f"overlapping {overlapped} s did not help against {waiting} s"
    reader.say(
        "in between, what is being received must not be read and what is being sent must not be changed"
    )


def both_ways(rank: int, world: int, compute: float, delay: float) -> tuple[float, float]:
    return _receive(rank, compute, delay, overlap=False), _receive(rank, compute, delay, overlap=True)


def _receive(rank: int, compute: float, delay: float, *, overlap: bool) -> float:
    dist.barrier()
    begin = time.monotonic()
    x = torch.zeros(3)
    if rank == 1:
        time.sleep(delay)
        dist.send(torch.ones(3), dst=0)
    elif overlap:
        coming = dist.irecv(x, src=1)
        assert coming is not None, "rank 0 hears from rank 1"
        time.sleep(compute)
        coming.wait()
    else:
        dist.recv(x, src=1)
        time.sleep(compute)
    took = time.monotonic() - begin
    assert rank == 1 or x.tolist() == [1.0, 1.0, 1.0], f"received {x.tolist()}"
    return took
