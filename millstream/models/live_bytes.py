"""Counts the bytes that are alive on a device while torch works there: every tensor that an operation makes,
until it dies."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Views count with the storage they look into, and a storage counts once, whoever holds it: a parameter
    too. One that grows or shrinks, as those of collected weights do, counts from then on with the size it
    has."""

    def __init__(self, device: str = "meta") -> None:
        super().__init__()
        self._device = device
        self.peak = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}
        """Some of them may have died."""
        self._made_bytes = 0
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Self:
        def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            resized = self._resize(storage, size)
            self._count(storage)
            return resized

        torch.UntypedStorage.resize_ = resize  # type: ignore[assignment, method-assign]
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def _count(self, *storages: torch.UntypedStorage) -> None:
        for storage in storages:
            if storage.device.type == self._device:
                _, before = self._made.get(storage._cdata, (None, 0))
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self._made_bytes += storage.nbytes() - before
        if self._made_bytes > self.peak:  # only then does it matter who died
            self._made = {key: held for key, held in self._made.items() if not held[0].expired()}
            self._made_bytes = sum(size for _, size in self._made.values())
            self.peak = max(self.peak, self._made_bytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        # An input of the network or a weight that was there before: not its working set.
        given = {
            leaf.untyped_storage()._cdata for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)
        }
        made = [leaf.untyped_storage() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self._count(*(storage for storage in made if storage._cdata not in given))
        return out
