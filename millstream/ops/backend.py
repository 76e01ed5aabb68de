"""Where hand-written kernels run: on a CUDA device, with Triton installed. Everywhere else their plain twins do."""

from __future__ import annotations

import importlib.util
from functools import cache

from torch import Tensor


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def runs_kernels(x: Tensor) -> bool:
    return x.is_cuda and has_triton()
