"""Blocks whose calls are recorded once and then replayed as CUDA graphs: the host launches one thing instead
of hundreds.

A recording holds addresses and lengths, so there is one for each ring, each level it is filled to, and each
kind of call; numbers that change (residual, modulations, places, phases, prompt) are copied to where the
recording reads them. What is called seldom, as while a window fills, is not worth recording and simply runs.
All recordings share one pool of memory: one runs at a time, and what it leaves behind is read before the
next.
Shapes: B rows (sessions), F frames, T tokens a frame, L chunk tokens, D width.
"""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.core.speed import Speed
from millstream.models.dit import BlockStack, CrossKV
from millstream.models.fast.graph_memsets import MemsetReplacer
from millstream.models.fast.spread import ALONE, Record, Run, Spread
from millstream.models.fast.stack import FastStack
from millstream.models.kv import KVRing, Memory, PaddedSpan
from millstream.models.quantised_window import PackedWindow
from millstream.ops.rope import Phases

CALLS_BEFORE = {"step": 8, "commit": 2}
"""Times that a call is seen before it is recorded: more than one chunk makes of it, so that a window that is
filling is not recorded."""
MAX_RECORDINGS = 128
"""The one that was not used for longest goes, if that is long: where more are needed than there may be, calls
run as they are rather than push each other out."""
LONG = 4 * MAX_RECORDINGS
"""Calls since a recording was last used, after which it may be dropped."""
MAX_COUNTED = 1024
"""Calls that are counted; beyond it, counting starts over."""


class RingView:
    """A ring as a recording sees it: where it is, with places and phases in memory that stays. A session's
    ring ends with the session: what was recorded of it does not hold it."""

    def __init__(self, ring: KVRing) -> None:
        self._ring = weakref.ref(ring)
        self.index = ring.index.clone()
        self.phases = Phases(ring.phases.cos.clone(), ring.phases.sin.clone())
        self.bias = None

    @property
    def packed(self) -> PackedWindow | None:
        return self._there().packed

    def span(self, layer: int, *, rounded: bool) -> PaddedSpan:
        return self._there().span(layer, rounded=rounded)

    def written_in_place(self, layer: int) -> None:
        """Do nothing: a ring that fills its sink is not recorded."""

    def copy_from(self, ring: KVRing) -> None:
        self.index.copy_(ring.index)
        self.phases.cos.copy_(ring.phases.cos)
        self.phases.sin.copy_(ring.phases.sin)

    def _there(self) -> KVRing:
        ring = self._ring()
        assert ring is not None, "recorded after its session ended"
        return ring


@dataclass(slots=True)
class RecordedCalls:
    x_BFTD: Tensor
    levels_BF6D: Tensor
    views: Sequence[RingView]
    run: Run
    used_at: int = 0

    def replay(self, x_BFTD: Tensor, levels_BF6D: Tensor, rings: Sequence[KVRing]) -> Tensor:
        """The residual as it leaves the blocks; good until the next call."""
        self.x_BFTD.copy_(x_BFTD)
        self.levels_BF6D.copy_(levels_BF6D)
        for view, ring in zip(self.views, rings, strict=True):
            view.copy_from(ring)
        self.run()
        return self.x_BFTD


class GraphRecorder:
    """Records on one CUDA device, into one pool. In the middle of somebody's stream, so not as
    `torch.cuda.graph` does it: that waits for the device and first has everything given back that is free."""

    def __init__(self, device: torch.device, *, zero_words: bool = True) -> None:
        """With `zero_words`, words are set to zero by kernels; otherwise as the recorded calls do it."""
        self._living: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
        self._stream = torch.cuda.Stream(device)
        self._words = MemsetReplacer.on(device) if zero_words else None

    def __call__(self, run: Run) -> Run:
        if not self._living:  # a pool ends with the last recording in it
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph(keep_graph=self._words is not None)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                run()
            finally:
                graph.capture_end()
        if self._words is not None:
            self._words.change(graph.raw_cuda_graph())
            graph.instantiate()
        self._living.add(graph)
        return graph.replay


class RecordedStack(FastStack):
    def __init__(self, plain: BlockStack, speed: Speed, record: Record, spread: Spread = ALONE) -> None:
        super().__init__(plain, speed, spread)
        self.one_offs = 0
        """Calls that were recorded, or ran as they are because they are to be seen again before that."""
        self._record = record
        self._recordings: OrderedDict[Hashable, RecordedCalls] = OrderedDict()
        self._calls = 0
        self._seen: Counter[Hashable] = Counter()
        self._often: set[Hashable] = set()
        """Calls that some ring has seen often, wherever it is."""
        self._prompt: CrossKV | None = None
        self._told: dict[torch.Size, CrossKV] = {}

    def changed(self, modulations_N16D: Tensor) -> None:
        """Recordings hold the blocks that were: what comes often is recorded again."""
        super().changed(modulations_N16D)
        self.forget_recordings()
        self._told.clear()
        self._prompt = None

    def forward(self, x_BFTD: Tensor, levels_BF6D: Tensor, memory: Memory, cross: CrossKV) -> Tensor:
        rings = self._rings(memory)
        recording = self._recording("step", x_BFTD, levels_BF6D, rings, cross)
        if recording is None:
            return super().forward(x_BFTD, levels_BF6D, memory, cross)
        return recording.replay(x_BFTD, levels_BF6D, rings)

    def remember(self, x_BFTD: Tensor, levels_BF6D: Tensor, memory: Memory, cross: CrossKV) -> None:
        rings = self._rings(memory)
        recording = self._recording("commit", x_BFTD, levels_BF6D, rings, cross)
        if recording is None:
            super().remember(x_BFTD, levels_BF6D, memory, cross)
        else:
            recording.replay(x_BFTD, levels_BF6D, rings)

    def forget_recordings(self) -> None:
        """Drop all recordings. Call it before what they call, or the memory they name, is gone."""
        self._recordings.clear()
        self._seen.clear()
        self._often.clear()

    def _recording(
        self, kind: str, x_BFTD: Tensor, levels_BF6D: Tensor, rings: Sequence[KVRing], cross: CrossKV
    ) -> RecordedCalls | None:
        """Return the recording of this call, made if the call comes often; None where it is to run as it is.
        The prompt is copied to where the recording reads it."""
        if any(ring.fills_sink or ring.bias is not None for ring in rings):
            return None
        self._calls += 1
        key = (kind, x_BFTD.shape, *(_address(ring) for ring in rings))
        if key not in self._recordings:
            is_often = self._comes_often(
                kind, key, (kind, x_BFTD.shape, *(_likeness(ring) for ring in rings))
            )
            if is_often and not self._has_room():
                return None
            self.one_offs += 1
            if not is_often:
                return None
            self._tell(cross)
            self._recordings[key] = self._made(kind, x_BFTD, levels_BF6D, rings, self._told[cross.k[0].shape])
        self._tell(cross)
        self._recordings.move_to_end(key)
        self._recordings[key].used_at = self._calls
        return self._recordings[key]

    def _has_room(self) -> bool:
        """Return whether there is room for one more recording. The oldest is dropped for it if it is not used
        any more."""
        if len(self._recordings) < MAX_RECORDINGS:
            return True
        oldest = next(iter(self._recordings))
        if self._calls - self._recordings[oldest].used_at < LONG:
            return False
        del self._recordings[oldest]
        return True

    def _made(
        self, kind: str, x_BFTD: Tensor, levels_BF6D: Tensor, rings: Sequence[KVRing], told: CrossKV
    ) -> RecordedCalls:
        x = x_BFTD.clone()
        levels = levels_BF6D.clone()
        views = [RingView(ring) for ring in rings]
        body = self.walk if kind == "step" else self.walk_to_keys
        return RecordedCalls(x, levels, views, self._record(lambda: body(x, levels, views, told)))

    def _comes_often(self, kind: str, key: Hashable, likeness: Hashable) -> bool:
        """Return whether a call like this one comes often. What is frequent in one session, or in so many
        together, will be in the next: their calls are recorded at once."""
        if len(self._seen) >= MAX_COUNTED:
            self._seen.clear()
            self._often.clear()
        self._seen[key] += 1
        if self._seen[key] > CALLS_BEFORE[kind]:
            self._often.add(likeness)
        return likeness in self._often

    def _tell(self, cross: CrossKV) -> None:
        """Copy a prompt's keys and values to where recordings read them. They are kept from call to call,
        since a prompt stays for a while."""
        if cross is self._prompt:
            return
        shape = cross.k[0].shape
        if shape not in self._told:
            self._told[shape] = CrossKV(tuple(k.clone() for k in cross.k), tuple(v.clone() for v in cross.v))
        told = self._told[shape]
        for to, source in zip((*told.k, *told.v), (*cross.k, *cross.v), strict=True):
            to.copy_(source)
        self._prompt = cross


def chunks_before(steps: int) -> int:
    """Return how many chunks of so many steps with a full window pass until all their calls are recorded; a
    commit may come a chunk later."""
    assert steps > 0, f"a chunk of {steps} steps"
    return max(-(-CALLS_BEFORE["step"] // steps), CALLS_BEFORE["commit"] + 1) + 1


def _address(ring: KVRing) -> Hashable:
    """Return all that a recording depends on: a new ring of this shape in this place may use it as the old
    one did."""
    k, _, _ = ring.span(0, rounded=True)
    return *_likeness(ring), k.data_ptr(), ring.packed and ring.packed.address


def _likeness(ring: KVRing) -> tuple[Hashable, ...]:
    """Return what two rings must have in common for their calls to be alike, wherever they lie in memory."""
    k, _, num_zeros = ring.span(0, rounded=True)
    return ring.shape, k.shape[1], num_zeros
