"""A session's keys and values: a ring of frame slots (`models/frame_slots.py`), the first of which may be a
sink.

Keys carry their rotary phase, so the order of slots does not matter to attention and nothing is ever moved.
All bookkeeping is in Python integers; tensors are only written and sliced, so no call waits for the device.
With `windowed` positions the sink's keys are kept twice (`models/sink_keys.py`). Behind the last slot there
is room for zeros, so that a kernel can be given a round number of keys; nothing else sees it. Beside it there
may be a copy in 8 bits, `packed` (`models/quantised_window.py`). A ring that was forked shares its window
with the other branches (`models/pages.py`); one that was not pays nothing for that.
Shapes: B batch, L chunk tokens, W valid window tokens, N heads, H head width.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from millstream.models.frame_slots import FrameSlots
from millstream.models.pages import PagePool, PageTable, Window
from millstream.models.quantised_window import PackedWindow
from millstream.models.ring_shape import RingShape
from millstream.models.sink_keys import SinkKeys
from millstream.ops.attention import KEY_MULTIPLE, attend
from millstream.ops.rope import Phases, frame_numbers, frame_phases


class Attended(NamedTuple):
    """Keys, values and score bias that a chunk's queries attend to."""

    k_BWNH: Tensor
    v_BWNH: Tensor
    bias: Tensor | None


class PaddedSpan(NamedTuple):
    """Keys and values for a kernel that is faster with a round number of them: the last `num_zeros` are
    zeros."""

    k_BWNH: Tensor
    v_BWNH: Tensor
    num_zeros: int


class Memory(Protocol):
    """Where a self-attention layer puts its keys and values and finds those it may see."""

    @property
    def phases(self) -> Phases: ...

    def write(self, layer: int, k_BLNH: Tensor, v_BLNH: Tensor) -> object:
        """Keep a layer's keys and values."""

    def attend(self, layer: int, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor) -> Tensor:
        """Keep them, and attend to all that these tokens may see."""


class WholeSequence:
    """A memory that holds nothing and has no places for layers: each attends within what it is given."""


class KVRing:
    """Keys and values of one session. `place` chooses slots for a run of frames, `write` fills them layer by
    layer."""

    def __init__(
        self,
        shape: RingShape,
        *,
        device: torch.device,
        dtype: torch.dtype,
        key_multiple: int | None = None,
        pool: PagePool | None = None,
    ) -> None:
        assert 0 <= shape.sink < shape.window, f"a sink of {shape.sink} frames in a window of {shape.window}"
        self.shape = shape
        self.pool = PagePool() if pool is None else pool
        """Pool for the pages of its branches, if it is ever forked."""
        self.key_multiple = key_multiple or (KEY_MULTIPLE if device.type == "cuda" else 1)
        self._table: PageTable | None
        """Table of the pages that the slots refer to; None until it is forked. This ring as it was placed,
        `as_placed`, has the same one."""
        self._packed_means: tuple[Tensor, Tensor] | None
        """Means of the last placing, to pack the same frames again after a branch has used the window."""
        self._hold(self._new_window(device, dtype))
        self.sink = SinkKeys(shape, self.k) if shape.positions == "windowed" and shape.sink > 0 else None
        """Keys of the sink as they were written; None where they never turn."""
        self.reset()

    def reset(self) -> None:
        """Forget everything; memory stays."""
        if self._table is not None:
            self._table.clear()
        self.slots = FrameSlots(self.shape)
        self._bias: Tensor | None = None
        if self.sink is not None:
            self.sink.tokens = None

    def to(self, device: torch.device) -> KVRing:
        """Hold the same frames elsewhere; the next `place` goes on from there."""
        if device != self.k.device:
            self._move(device)
            if self.sink is not None:
                self.sink.to(device)
        return self

    def fork(self) -> KVRing:
        """A ring with the same frames that goes on by itself. Nothing is copied: both share what neither has
        overwritten.

        Between chunks only: either is placed anew before it is written.
        """
        if self._table is None:
            self._table = PageTable.of_all(
                self.window, self.pool, [frame >= 0 for frame in self.slots.frames]
            )
        branch = copy.copy(self)
        branch._table = self._table.fork()
        branch.slots = self.slots.copy()
        branch.sink = None if self.sink is None else self.sink.fork()
        return branch

    def as_placed(self) -> KVRing:
        """Return this ring as it is placed now: its tensors and its table of frames are the same, also when
        this one is placed for the next chunk."""
        placed = copy.copy(self)
        placed.sink = copy.copy(self.sink)
        return placed

    def reserve(self) -> None:
        """Have room for whatever may be placed from here on; a branch that finds none raises before anything
        changes."""
        if self._table is not None:
            self._table.reserve()

    def own_window(self) -> None:
        """Share nothing any more: rings of one call, or with calls that others come between, need a window
        each."""
        if self._table is not None:
            self._move(self.k.device)

    def come_back(self) -> None:
        """Have the window as the placed frames need it, if a branch has used it since they were written."""
        if self._table is not None and self._table.enter():
            self._clear_padding()
            if self._packed_means is not None:
                assert self.packed is not None, "a window that was packed stays so"
                self.packed.restore(
                    self.k[:, :, : self._valid], self.v[:, :, : self._valid], self._packed_means
                )

    @property
    def packed(self) -> PackedWindow | None:
        """Copy of the window in 8 bits; None until it is asked for."""
        return self.window.packed

    @property
    def num_bytes(self) -> int:
        """Bytes of this ring, with all that it shares."""
        return held_bytes([self])

    def parts_bytes(self) -> dict[int, int]:
        """Bytes by the identity of what holds them, which other rings may hold as well."""
        parts = {id(self.window): self.window.num_bytes}
        if self.sink is not None:
            parts[id(self.sink.k)] = self.sink.k.nbytes
        return parts if self._table is None else parts | self._table.stored_bytes()

    def state(self) -> dict[str, Tensor]:
        """Its tensors by name; with its slots' `frames` and `written` they are all there is of it between
        chunks."""
        window = self.window
        if self._table is not None:  # what lies in the window may be a branch's
            window = self._new_window(self.k.device, self.k.dtype)
            self._table.copy_to(window)
        held = {"k": window.k, "v": window.v}
        return held if self.sink is None else held | {"sink_k": self.sink.k}

    def resume(self, state: Mapping[str, Tensor], frames: Sequence[int], written: int) -> None:
        """Go on from what another ring of this shape held."""
        self.slots.resume(frames, written)
        self.own_window()
        self.k.copy_(state["k"])
        self.v.copy_(state["v"])
        if self.sink is not None:
            self.sink.resume(state["sink_k"])

    @property
    def phases(self) -> Phases:
        return self._phases

    def place(self, frames: list[int], *, end_frame: int | None = None, kv_bias: float = 1.0) -> None:
        """Take slots for `frames`, evicting the oldest; every `write` until the next `place` goes there.

        Placing the newest frames again takes the same slots again: a chunk is placed once and written many
        times. `end_frame` is where the window ends for `windowed` positions, if that is past the last of
        `frames`.
        """
        assert 0 < len(frames) <= self.shape.window, (
            f"{len(frames)} frames for a window of {self.shape.window}"
        )
        if self._table is not None:
            self._table.enter()
        end = frames[-1] + 1 if end_frame is None else end_frame
        self._past = self.slots.num_tokens
        slots = [self.slots.place(frame) for frame in frames]
        self._index = self._token_index(slots)
        self._valid = self.slots.num_tokens
        positions = [self.slots.position(frame, slot, end) for frame, slot in zip(frames, slots, strict=True)]
        self._phases = frame_phases(
            frame_numbers(positions, self.k.device), self.shape.grid, self.shape.head_width
        )
        self._bias = self._past_bias(slots, kv_bias)
        if self._table is not None:
            self._table.own(slots)
        self._clear_padding()
        if self.sink is not None:
            self._place_sink(self.sink, slots, end)
        self._renew_packed()

    def pack(self) -> None:
        """Have `packed` from here on, for the frames that are placed and all later ones."""
        if self.packed is None:
            shape = self.shape
            self.window.packed = PackedWindow(
                layers=shape.layers,
                batch=shape.batch,
                places=self.k.shape[2],
                heads=shape.heads,
                head_width=shape.head_width,
                tokens_per_frame=shape.tokens_per_frame,
                device=self.k.device,
            )
            self._renew_packed()

    @property
    def index(self) -> Tensor:
        """Where each token of the placed frames goes."""
        return self._index

    @property
    def bias(self) -> Tensor | None:
        """Bias on the scores of the keys that the placed frames see; None for none."""
        return self._bias

    @property
    def fills_sink(self) -> bool:
        """True if sink frames, whose keys are kept twice, are among the placed ones."""
        return self.sink is not None and self.sink.tokens is not None

    def span(self, layer: int, *, rounded: bool) -> PaddedSpan:
        """All that the placed frames attend to, and zeros up to a round number if so asked."""
        end = self._rounded(self._valid) if rounded else self._valid
        k, v = self.window.room[:, layer, :, :end].unbind(0)
        return PaddedSpan(k, v, end - self._valid)

    def written_in_place(self, layer: int) -> None:
        """A kernel has filled the placed slots of `span` itself: do what `write` does besides."""
        sink = self.sink
        if sink is not None and sink.tokens is not None:
            sink.keep(layer, self.k[layer].index_select(1, sink.tokens))

    def write(self, layer: int, k_BLNH: Tensor, v_BLNH: Tensor) -> Attended:
        """Store a layer's keys and values in the placed slots and return all that the placed frames attend
        to."""
        k = self.k[layer]
        v = self.v[layer]
        k.index_copy_(1, self._index, k_BLNH)
        v.index_copy_(1, self._index, v_BLNH)
        sink = self.sink
        if sink is not None and sink.tokens is not None:
            sink.keep(layer, k_BLNH[:, : len(sink.tokens)])
        return Attended(k[:, : self._valid], v[:, : self._valid], self._bias)

    def attend(self, layer: int, q_BLNH: Tensor, k_BLNH: Tensor, v_BLNH: Tensor) -> Tensor:
        """Store, then attend to the window."""
        return attend(q_BLNH, *self.write(layer, k_BLNH, v_BLNH))

    def _new_window(self, device: torch.device, dtype: torch.dtype) -> Window:
        shape = self.shape
        tokens = shape.window * shape.tokens_per_frame
        size = (2, shape.layers, shape.batch, self._rounded(tokens), shape.heads, shape.head_width)
        zeros = torch.zeros if self.pool.rooms is None else self.pool.rooms.zeros
        return Window(
            zeros(size, device=device, dtype=dtype),
            slots=shape.window,
            tokens_per_frame=shape.tokens_per_frame,
        )

    def _hold(self, window: Window) -> None:
        """Hold frames there from now on; no other ring does."""
        self.window = window
        self.k = window.k
        self.v = window.v
        self._table = self._packed_means = None

    def _move(self, device: torch.device) -> None:
        window = self._new_window(device, self.k.dtype)
        if self._table is None:
            window.room.copy_(self.window.room)
        else:
            self._table.copy_to(window)
        self._hold(window)

    def _clear_padding(self) -> None:
        """Zeros behind the last frame: before a ring is full, old frames may lie there, or a branch's."""
        end = self._rounded(self._valid)
        if self._table is not None:
            per_frame = self.shape.tokens_per_frame
            self._table.vacate(range(self._valid // per_frame, min(self.shape.window, -(-end // per_frame))))
        self.window.room[:, :, :, self._valid : end] = 0

    def _renew_packed(self) -> None:
        if self.packed is not None:
            self.packed.renew(self.k[:, :, : self._valid], self.v[:, :, : self._valid], self._past)
            self._packed_means = None if self._table is None else self.packed.means()

    def _rounded(self, tokens: int) -> int:
        return -(-tokens // self.key_multiple) * self.key_multiple

    def _token_index(self, slots: list[int]) -> Tensor:
        per_frame = self.shape.tokens_per_frame
        runs = [
            torch.arange(slot * per_frame, (slot + 1) * per_frame, device=self.k.device) for slot in slots
        ]
        return torch.cat(runs)

    def _past_bias(self, slots: list[int], kv_bias: float) -> Tensor | None:
        """Scores of past frames lowered by log(kv_bias); the placed frames keep theirs."""
        if kv_bias == 1.0:
            return None
        bias = torch.full((self.shape.window, self.shape.tokens_per_frame), math.log(kv_bias))
        bias[slots] = 0.0
        return bias.flatten()[: self._valid].to(self.k).view(1, 1, 1, -1)

    def _place_sink(self, sink: SinkKeys, slots: list[int], end_frame: int) -> None:
        """Bring the sink's keys to their distance for a window that ends at `end_frame`."""
        fresh = [slot for slot in slots if slot < self.shape.sink]
        assert fresh == slots[: len(fresh)], f"sink slots must be written first, got {slots}"
        offsets = self.slots.sink_offsets(end_frame)
        sink.place(self._token_index(fresh) if fresh else None, [offsets[slot] for slot in fresh])
        if any(offsets):
            if self._table is not None:
                self._table.own(range(len(offsets)))
            sink.turn(self.k, offsets)


def held_bytes(rings: Iterable[KVRing]) -> int:
    """Return the bytes that these rings hold. What several share is counted once."""
    parts: dict[int, int] = {}
    for ring in rings:
        parts |= ring.parts_bytes()
    return sum(parts.values())
