"""Choice of where hand-written kernels run: on a CUDA device, with Triton installed. Everywhere else their
plain twins do."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from torch import Tensor

_only_twins: ContextVar[bool] = ContextVar("_only_twins", default=False)


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def runs_kernels(x: Tensor) -> bool:
    return x.is_cuda and has_triton() and not _only_twins.get()


@contextmanager
def only_twins() -> Iterator[None]:
    """Plain twins on every device: what kernels are compared with."""
    token = _only_twins.set(True)
    try:
        yield
    finally:
        _only_twins.reset(token)
