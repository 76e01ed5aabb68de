"""Memory for windows on a GPU, apart from all other: who comes next finds the place of who left, and the
calls recorded there.

Taken from where everything else is, a window that was given back is cut up for whatever is asked for first,
and the next one lies elsewhere: each new session had its calls recorded anew, and everybody waited for that.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor

MAX_SIZES = 4
"""Sizes of windows whose places are kept; the one that was not asked for longest goes."""

Size = tuple[int, ...]


class WindowMemoryPools:
    def __init__(self) -> None:
        self._pools: OrderedDict[tuple[Size, torch.dtype, torch.device], torch.cuda.MemPool] = OrderedDict()

    def zeros(self, size: Size, *, device: torch.device, dtype: torch.dtype) -> Tensor:
        if device.type != "cuda":
            return torch.zeros(size, device=device, dtype=dtype)
        key = size, dtype, device
        with torch.cuda.device(device):
            if key not in self._pools:
                self._pools[key] = torch.cuda.MemPool()
            self._pools.move_to_end(key)
            if len(self._pools) > MAX_SIZES:
                self._pools.popitem(last=False)
            with torch.cuda.use_mem_pool(self._pools[key]):
                return torch.zeros(size, device=device, dtype=dtype)

    def give_back(self) -> None:
        """Whatever no window lies in. Windows stay where they are; later ones lie elsewhere."""
        self._pools.clear()
