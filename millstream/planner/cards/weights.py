"""Formats in which weights are kept in memory: as they are, or packed into fewer bits and unpacked before
each matmul."""

from __future__ import annotations

from millstream.core.errors import ConfigError

NATIVE = "native"
BITS = {"int8": 8.0, "q8_0": 8.5, "q6_k": 6.5625, "q5_k": 5.5, "q4_k": 4.5}
"""Bits a weight, scales included: int8 by rows, the others as llama.cpp's GGUF files have them."""


def check_weights(name: str) -> None:
    if name != NATIVE and name not in BITS:
        raise ConfigError(f"--weights must be {NATIVE}, {', '.join(BITS)}, got {name!r}")


def weight_bytes(name: str, value_bytes: int) -> float:
    """Return the bytes of one weight of a matmul."""
    return BITS[name] / 8 if name in BITS else value_bytes


def unpacking_bytes(name: str, value_bytes: int) -> float:
    """Bytes that a call moves besides, per weight: the packed one is read and the whole one written, for the
    matmul to read."""
    return BITS[name] / 8 + value_bytes if name in BITS else 0.0
