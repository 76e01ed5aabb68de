"""Counts the bytes of tensors that are alive, on any device, while code runs under it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

BARS = " ▁▂▃▄▅▆▇█"


class MemoryMeter(TorchDispatchMode):
    """Every operator's results are noted while their memory lives. Peaks are kept by phase."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = 0
        self.peaks: dict[str, int] = {}
        self.history: list[int] = []
        """Bytes alive after each operator."""
        self._phase = ""
        self._known: dict[int, weakref.ref[Any]] = {}

    def phase(self, name: str) -> None:
        self._phase = name
        self._note_peak()

    def hold(self, *modules: nn.Module) -> int:
        """Count what was there before. How many bytes that are."""
        before = self.alive
        for module in modules:
            for tensor in (*module.parameters(), *module.buffers()):
                self._note(tensor)
        return self.alive - before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._note(tensor)
        self.history.append(self.alive)
        return made

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        place = storage._cdata
        size = storage.nbytes()
        if place in self._known:
            return
        self.alive += size
        self._known[place] = weakref.ref(storage, lambda _: self._forget(place, size))
        self._note_peak()

    def _forget(self, place: int, size: int) -> None:
        self.alive -= size
        del self._known[place]

    def _note_peak(self) -> None:
        self.peaks[self._phase] = max(self.peaks.get(self._phase, 0), self.alive)


def drawn(history: Sequence[float], columns: int = 64) -> str:
    """A line of bars, each as high as the most in its share of the time."""
    size = -(-len(history) // columns)
    highest = [max(history[first : first + size]) for first in range(0, len(history), size)]
    return "".join(BARS[round((len(BARS) - 1) * each / max(highest))] for each in highest)
