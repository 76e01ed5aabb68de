"""Chapter 10, exercises. Fill in the functions, then run `millstream course check 10`."""

from __future__ import annotations


def step_us(kernels: int, launch_us: float, kernel_us: float) -> float:
    """When the last of so many equal kernels is over, launched one by one.

    A kernel begins when it was launched and the one before it is over; the processor launches on without
    waiting.
    """
    raise NotImplementedError("step_us")


def graph_gain(kernels: int, launch_us: float, kernel_us: float) -> float:
    """How many times faster the same kernels are as one graph, which is launched once."""
    raise NotImplementedError("graph_gain")
