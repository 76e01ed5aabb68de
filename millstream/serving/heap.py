"""Giving freed memory back to the system, which the C library would keep for the next allocation."""

from __future__ import annotations

import ctypes
from functools import cache


def trim_heap() -> None:
    """Where the C library can; elsewhere nothing."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> ctypes._NamedFuncPointer | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # not glibc
        return None
