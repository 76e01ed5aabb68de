"""Ceilings of a device by kind of work: the peak that kernels, and whole phases, are held against."""

from __future__ import annotations

from millstream.planner.hardware import Rates


def peak(rates: Rates, family: str, *, eight_bit: bool = False) -> float:
    """Return the peak in TFLOP/s. Walks over values are held against matmuls, which they never come near,
    and convolutions of any width against the widest: a kernel may be better at narrow ones than the library's
    that were measured."""
    quicker = rates.fp8_tflops / rates.matmul_tflops if eight_bit and rates.fp8_tflops is not None else 1.0
    if family == "attention":
        return rates.attention_tflops * quicker
    if family == "convolution":
        return max(rate for _, rate in rates.conv_tflops)
    return rates.matmul_tflops * quicker
