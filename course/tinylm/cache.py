"""Keys and values of many texts in pages of one pool, as servers of language models keep them.

A text has a table of pages, not a piece of memory: it grows by a page at a time, wherever one is free. Texts
that begin alike can refer to the same pages; a page that several refer to is copied before one of them writes
into it. Rejected tokens are taken back by `cut`. What branches of a video session share is `models/pages.py`.
It differs in one thing: there attention reads one piece of memory, and branches take turns in it; here it
gathers pages.
Shapes: P pages, S tokens of a page, G heads of keys, H head width, B texts, L new tokens, T tokens attended
to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from course.tinylm.model import TinyConfig
from millstream.core.errors import PoolFull


@dataclass(eq=False, slots=True)
class CachedText:
    """Pages of one text in the pool."""

    pages: list[int] = field(default_factory=list)
    length: int = 0
    """Number of tokens whose keys and values are there."""


class PagedCache:
    def __init__(self, config: TinyConfig, *, pages: int, page_tokens: int = 16) -> None:
        self.page_tokens = page_tokens
        self._room = torch.zeros(2, config.layers, pages, page_tokens, config.kv_heads, config.head_width)
        self._users = [0] * pages
        """Number of texts that refer to each page."""

    @property
    def free_pages(self) -> int:
        return self._users.count(0)

    @property
    def used_pages(self) -> int:
        return len(self._users) - self.free_pages

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def fork(self, text: CachedText, length: int | None = None) -> CachedText:
        """Return another text with the same beginning, up to `length` tokens. Nothing is copied."""
        length = text.length if length is None else length
        assert length <= text.length, f"{length} of {text.length} tokens"
        other = CachedText(text.pages[: self.pages_for(length)], length)
        for page in other.pages:
            self._users[page] += 1
        return other

    def cut(self, text: CachedText, length: int) -> None:
        """Release what comes after this many tokens."""
        keep = self.pages_for(length)
        for page in text.pages[keep:]:
            self._users[page] -= 1
        text.pages, text.length = text.pages[:keep], min(length, text.length)

    def grow(self, texts: Sequence[CachedText], count: int) -> PagedMemory:
        """Room for `count` more tokens of each, and what a model then reads and writes through."""
        for text in texts:
            self._make_room(text, count)
        return PagedMemory(self._room, texts, count)

    def _make_room(self, text: CachedText, count: int) -> None:
        first = text.length // self.page_tokens
        for place in range(first, self.pages_for(text.length + count)):
            if place == len(text.pages):
                text.pages.append(self._take())
            elif self._users[text.pages[place]] > 1:  # others refer to what lies there
                shared = text.pages[place]
                text.pages[place] = self._take()
                self._room[:, :, text.pages[place]] = self._room[:, :, shared]
                self._users[shared] -= 1

    def _take(self) -> int:
        if 0 not in self._users:
            raise PoolFull(
                f"all {len(self._users)} pages are in use: end a text or give the cache more pages"
            )
        page = self._users.index(0)
        self._users[page] = 1
        return page


class PagedMemory:
    """One model call's view of the pool: `count` new tokens of each of these texts."""

    def __init__(self, room: Tensor, texts: Sequence[CachedText], count: int) -> None:
        self._room = room
        page_tokens = room.shape[3]
        longest = max(text.length + count for text in texts)
        tables = torch.zeros(len(texts), -(-longest // page_tokens), dtype=torch.long)
        for row, text in enumerate(texts):
            tables[row, : len(text.pages)] = torch.tensor(text.pages)
        places_T = torch.arange(longest)
        self._slots_BT = tables[:, places_T // page_tokens] * page_tokens + places_T % page_tokens
        lengths_B = torch.tensor([text.length for text in texts])
        self.positions_BL = lengths_B[:, None] + torch.arange(count)
        self.mask_BLT = places_T <= self.positions_BL[..., None]
        self._new_BL = self._slots_BT.gather(1, self.positions_BL)
        for text in texts:
            text.length += count

    def extend(self, layer: int, k_BLGH: Tensor, v_BLGH: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self._room[:, layer].flatten(1, 2)  # [P * S, G, H]
        k[self._new_BL] = k_BLGH
        v[self._new_BL] = v_BLGH
        return k[self._slots_BT], v[self._slots_BT]
