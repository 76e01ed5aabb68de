"""Chapter 10, solution."""

from __future__ import annotations


def step_us(kernels: int, launch_us: float, kernel_us: float) -> float:
    return launch_us + kernel_us + (kernels - 1) * max(launch_us, kernel_us)


def graph_gain(kernels: int, launch_us: float, kernel_us: float) -> float:
    return step_us(kernels, launch_us, kernel_us) / (launch_us + kernels * kernel_us)
