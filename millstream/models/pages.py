"""Keys and values in pages of one frame, shared by rings that were forked until one of them overwrites a
page.

A ring's frames lie in a window: one piece of memory that attention reads. Rings that were forked share a
window and use it in turns, each with a table of its own that says which page each slot is. Whoever takes the
window over exchanges the slots that differ and leaves the others; pages that do not lie in the window lie in
the pool. A page that several tables refer to is copied to the pool before one of them overwrites it, and
never otherwise. The pool has room for whatever its rings may still write, or refuses the fork: nobody runs
out of it later. Knows no attention and no positions.
Shapes: a window is [2, layers, B, W, N, H], a page the same with one frame's tokens.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from millstream.core.config import GIB
from millstream.core.errors import PoolFull
from millstream.models.quantised_window import PackedWindow
from millstream.models.window_pools import WindowMemoryPools

_LOCK = threading.RLock()
"""Tables end when their last owner forgets them, on whichever thread that is."""


class Page:
    """One frame's keys and values of all layers, as some ring has written them."""

    __slots__ = ("kept_by", "stored", "users")

    def __init__(self) -> None:
        self.users = 1
        """Tables that refer to it."""
        self.kept_by = 0
        """Tables among them that have not placed anything since they were forked: they need all the pages
        that they have."""
        self.stored: Tensor | None = None
        """Its content, while it does not lie in a window."""


class PagePool:
    """The pages of one device that do not lie in a window, and how many there may come to be."""

    def __init__(self, *, rooms: WindowMemoryPools | None = None) -> None:
        self.capacity_bytes: int | None = None
        """Bytes that the pool may hold; None for all that the device has."""
        self.rooms = rooms
        """Where windows lie, if apart from everything else."""
        self.pages_in_use = 0
        self.bytes_in_use = 0
        self.promised_bytes = 0
        """Bytes that the pool holds if every ring overwrites all that it shares."""
        self.copies = 0
        """Pages copied into the pool or out of it, ever."""

    def has_room(self, num_bytes: int, device: torch.device) -> bool:
        wanted = self.promised_bytes + num_bytes
        limit = self._limit(device, wanted)
        return limit is None or wanted <= limit

    def promise(self, num_bytes: int, device: torch.device) -> None:
        """Keep room; raises if there is none. Less than 0 bytes gives room back."""
        wanted = self.promised_bytes + num_bytes
        limit = self._limit(device, wanted) if num_bytes > 0 else None
        if limit is not None and wanted > limit:
            raise PoolFull(
                f"a branch may come to need {num_bytes / GIB:.2f} GiB of keys and values and "
                f"{max(0, limit - self.promised_bytes) / GIB:.2f} is free: end a branch or choose a smaller "
                "window or size"
            )
        assert wanted >= 0, f"{wanted} bytes of pages promised"
        self.promised_bytes = wanted

    def store(self, page: Page, content: Tensor) -> None:
        assert page.stored is None, "a page lies in a window or in the pool, not in both"
        page.stored = content.clone()
        self.pages_in_use += 1
        self.bytes_in_use += page.stored.nbytes
        self.copies += 1

    def load(self, page: Page, slot: Tensor) -> None:
        """Move a page into a window's slot, where it lies from now on."""
        assert page.stored is not None, "a page that does not lie in the window lies in the pool"
        slot.copy_(page.stored)
        self.copies += 1
        self.free(page)

    def free(self, page: Page) -> None:
        """Free the page's place in the pool, if it has one."""
        if page.stored is not None:
            self.pages_in_use -= 1
            self.bytes_in_use -= page.stored.nbytes
            page.stored = None

    def _limit(self, device: torch.device, wanted: int) -> int | None:
        if self.capacity_bytes is not None or device.type != "cuda":
            return self.capacity_bytes
        free = torch.cuda.mem_get_info(device)[0] + self.bytes_in_use
        if (
            wanted <= free
        ):  # what torch holds and does not use is slow to ask for, and sessions keep a state every few chunks
            return free
        if self.rooms is not None:
            self.rooms.give_back()
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


class Window:
    """A slot for each frame, and which page lies in it; of a ring that was never forked nobody asks that."""

    def __init__(self, room: Tensor, *, slots: int, tokens_per_frame: int) -> None:
        assert room.shape[3] >= slots * tokens_per_frame, (
            f"{slots} frames of {tokens_per_frame} tokens in {room.shape[3]}"
        )
        self.room = room
        self.k, self.v = room[:, :, :, : slots * tokens_per_frame].unbind(0)
        self.packed: PackedWindow | None = None
        """Copy of the window in 8 bits; None until it is asked for. It is made from the rest and no part of
        the state."""
        self.pages: list[Page | None] = [None] * slots
        self.writers = 0
        """Tables that have placed something since they were forked, or were never."""
        self.holder: weakref.ref[PageTable] | None = None
        """The table whose pages are all in this window."""
        self._tokens_per_frame = tokens_per_frame

    @property
    def num_bytes(self) -> int:
        return self.room.nbytes + (0 if self.packed is None else self.packed.num_bytes)

    @property
    def page_bytes(self) -> int:
        return self.slot(0).nbytes

    def slot(self, slot: int) -> Tensor:
        return self.room[:, :, :, slot * self._tokens_per_frame : (slot + 1) * self._tokens_per_frame]


class PageTable:
    """The pages that a ring's slots refer to. A table ends with its ring, and a page with the last table that
    refers to it."""

    def __init__(self, window: Window, pool: PagePool, pages: list[Page | None], *, writes: bool) -> None:
        self.window = window
        self.pool = pool
        self.pages = pages
        self._writes = writes
        window.writers += writes

    @classmethod
    def of_all(cls, window: Window, pool: PagePool, held: Iterable[bool]) -> PageTable:
        """The first one of a window: of the ring that has filled it alone."""
        with _LOCK:
            table = cls(window, pool, [Page() if each else None for each in held], writes=True)
            window.pages = list(table.pages)
            window.holder = weakref.ref(table)
            return table

    def fork(self) -> PageTable:
        """Another table of the same pages. Nothing is copied."""
        with _LOCK:
            pages = [page for page in self.pages if page is not None]
            unkept = sum(not page.kept_by for page in pages)
            self.pool.promise(unkept * self.window.page_bytes, self.window.room.device)
            for page in pages:
                page.users += 1
                page.kept_by += 1
            return PageTable(self.window, self.pool, list(self.pages), writes=False)

    def reserve(self) -> None:
        """Have room for whatever this table's ring may write, from here on; raises if there is none."""
        with _LOCK:
            if self._writes:
                return
            pages = [page for page in self.pages if page is not None]
            given_back = sum(page.kept_by == 1 for page in pages) * self.window.page_bytes
            self.pool.promise(self._all_slots_bytes() - given_back, self.window.room.device)
            for page in pages:
                page.kept_by -= 1
            self._writes = True
            self.window.writers += 1

    def enter(self) -> bool:
        """Bring all pages into the window. Return whether another table has used the window since."""
        with _LOCK:
            self.reserve()
            window = self.window
            if window.holder is not None and window.holder() is self:
                return False
            window.holder = None  # until all is done: a device may run out of memory half-way
            for slot, page in enumerate(self.pages):
                if page is not None and window.pages[slot] is not page:
                    self.vacate([slot])
                    self.pool.load(page, window.slot(slot))
                    window.pages[slot] = page
            window.holder = weakref.ref(self)
            return True

    def own(self, slots: Iterable[int]) -> None:
        """Make these slots the table's own before they are overwritten, so that no other table refers to what
        lies there. Call it after `enter`."""
        with _LOCK:
            for slot in slots:
                page = self.pages[slot]
                if page is None or page.users > 1:
                    self.vacate([slot])
                    self._forget(slot)
                    self.pages[slot] = self.window.pages[slot] = Page()

    def vacate(self, slots: Iterable[int]) -> None:
        """Move pages in these slots to the pool before they are lost, if any table refers to them."""
        with _LOCK:
            for slot in slots:
                page = self.window.pages[slot]
                if page is not None and page.users:
                    self.pool.store(page, self.window.slot(slot))
                self.window.pages[slot] = None

    def copy_to(self, window: Window) -> None:
        """Copy all pages, wherever they lie, to an empty window of this shape."""
        with _LOCK:
            for slot, page in enumerate(self.pages):
                if page is not None:
                    window.slot(slot).copy_(self.window.slot(slot) if page.stored is None else page.stored)

    def stored_bytes(self) -> dict[int, int]:
        """Return the bytes of each page that lies in the pool, by its identity."""
        with _LOCK:
            return {
                id(page): page.stored.nbytes
                for page in self.pages
                if page is not None and page.stored is not None
            }

    def clear(self) -> None:
        """Refer to nothing."""
        with _LOCK:
            for slot in range(len(self.pages)):
                self._forget(slot)

    def __del__(self) -> None:
        with _LOCK:
            self.clear()
            if self._writes:
                self.window.writers -= 1
                self.pool.promise(-self._all_slots_bytes(), self.window.room.device)

    def _all_slots_bytes(self) -> int:
        """Return the bytes that one more writing ring may need of the pool: all its slots, except for the
        first such ring, which has the window."""
        return len(self.pages) * self.window.page_bytes if self.window.writers else 0

    def _forget(self, slot: int) -> None:
        page = self.pages[slot]
        self.pages[slot] = None
        if page is None:
            return
        if not self._writes:
            page.kept_by -= 1
            if not page.kept_by:
                self.pool.promise(-self.window.page_bytes, self.window.room.device)
        page.users -= 1
        if not page.users:
            self.pool.free(page)
