"""A text's branches in the engine's own pages (`models/pages.py`): one window that attention reads, used in
turns."""

from __future__ import annotations

import torch
from torch import Tensor

from course.tinylm.model import TinyConfig
from millstream.models.pages import PagePool, PageTable, Window


class TextBranch:
    """Counterpart of `KVRing` for letters instead of video frames: a table of pages, and a length."""

    def __init__(self, window: Window, table: PageTable, length: int, page_tokens: int) -> None:
        self.window = window
        self.table = table
        self.length = length
        self.page_tokens = page_tokens

    @classmethod
    def first(cls, config: TinyConfig, pool: PagePool, *, pages: int, page_tokens: int) -> TextBranch:
        room = torch.zeros(2, config.layers, 1, pages * page_tokens, config.kv_heads, config.head_width)
        window = Window(room, slots=pages, tokens_per_frame=page_tokens)
        return cls(window, PageTable.of_all(window, pool, [False] * pages), 0, page_tokens)

    def fork(self) -> TextBranch:
        return TextBranch(self.window, self.table.fork(), self.length, self.page_tokens)

    def grow(self, count: int) -> BranchMemory:
        """Take the window over, own the pages that are about to be written, and let a model read and
        write."""
        self.table.enter()
        self.table.own(
            range(self.length // self.page_tokens, (self.length + count - 1) // self.page_tokens + 1)
        )
        self.length += count
        return BranchMemory(self.window, self.length, count)


class BranchMemory:
    def __init__(self, window: Window, length: int, count: int) -> None:
        self._window = window
        self._length = length
        self.positions_BL = torch.arange(length - count, length)[None]
        self.mask_BLT = torch.arange(length) <= self.positions_BL[..., None]

    def extend(self, layer: int, k_BLGH: Tensor, v_BLGH: Tensor) -> tuple[Tensor, Tensor]:
        k = self._window.k[layer]
        v = self._window.v[layer]
        k[:, self.positions_BL[0]] = k_BLGH
        v[:, self.positions_BL[0]] = v_BLGH
        return k[:, : self._length], v[:, : self._length]
