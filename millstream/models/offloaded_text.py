"""A text encoder whose weights wait in host memory and are on the device only while a text is read.

For devices that are better filled with other things between two prompts. Weights do not change, so they are
copied one way, and what the device held is dropped. The same weights in the same place give the same bits.
Knows no text model.
Shapes: S text tokens, E text width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from millstream.models.prompts import Embedder

Carry = Callable[[Tensor], Tensor]


class OffloadedTextEncoder:
    """An embedder at home in host memory, called as if it were on `device`."""

    def __init__(self, embedder: Embedder, device: torch.device, *, carry: Carry | None = None) -> None:
        """`carry` is how a weight gets to the device: by default, from pinned memory, without waiting."""
        self.model = embedder.model
        self.read = embedder.read
        self._encode = embedder
        self._carry = carry or (lambda weight: weight.to(device, non_blocking=True))
        self._homes = [(parameter, _home(parameter.data, device)) for parameter in self.model.parameters()]
        self._leave()

    @property
    def num_bytes(self) -> int:
        """Bytes of device memory that a visit takes."""
        return sum(home.nbytes for _, home in self._homes)

    def __call__(self, text: str) -> Tensor:
        """[1, S, E], on the device."""
        with self.visit():
            return self._encode(text)

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Keep the weights on the device within this context."""
        for parameter, home in self._homes:
            parameter.data = self._carry(home)
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        for parameter, home in self._homes:
            parameter.data = home


def _home(weight: Tensor, device: torch.device) -> Tensor:
    """In host memory, pinned where that makes the way to the device a quick one."""
    host = weight.to("cpu")
    return host.pin_memory() if device.type == "cuda" else host
