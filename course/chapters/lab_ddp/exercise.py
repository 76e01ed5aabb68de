"""Lab 02. Fill in the class, then run `millstream course check lab-02`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


class Copies:
    """A module whose copies on all ranks learn as one."""

    def __init__(self, module: nn.Module, bucket_bytes: int) -> None:
        """Everybody starts with rank 0's parameters.

        Gradients become ready from the last parameter to the first. Lay them end to end in that order, in
        buckets of at most `bucket_bytes`; a larger one gets a bucket alone. A bucket that is full is sent at
        once, without waiting for the sum.
        """
        raise NotImplementedError("Copies")

    def finish(self) -> None:
        """After the backward pass: wait until every gradient is the mean over the ranks."""
        raise NotImplementedError("finish")

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients add up and nothing is sent. The next backward pass outside sends the sum of
        both."""
        raise NotImplementedError("no_sync")
        yield
