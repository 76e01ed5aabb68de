"""Chapter 14, exercises. Fill in the functions, then run `millstream course check 14`."""

from __future__ import annotations


def best_writers(write_s: float, learn_s: float, devices: int) -> int:
    """Choose how many of the devices should write, if the others learn at the same time: the step is as long
    as the slower side.

    `write_s` and `learn_s` are device seconds. Of equally good numbers, the smallest.
    """
    raise NotImplementedError("best_writers")


def state_gb(billions: float, learning: int, answering: int, shards: int) -> float:
    """GB a device, of models that learn with Adam in mixed precision and models that only answer, all sharded
    evenly."""
    raise NotImplementedError("state_gb")
