"""The ring against a list that simply forgets its oldest frames."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from millstream.models.kv import KVRing
from millstream.models.ring_shape import RingShape
from millstream.ops.rope import frame_phases, rotate

LAYERS = 2
HEADS = 2
HEAD = 12
GRID = (1, 2)
TOKENS = GRID[0] * GRID[1]


def make_ring(window: int, sink: int, positions: str = "absolute") -> KVRing:
    shape = RingShape(
        layers=LAYERS, heads=HEADS, head_width=HEAD, grid=GRID, window=window, sink=sink, positions=positions
    )
    return KVRing(shape, device=torch.device("cpu"), dtype=torch.float32)


@cache
def raw_key(frame: int, layer: int) -> torch.Tensor:
    return torch.randn(1, TOKENS, HEADS, HEAD, generator=torch.Generator().manual_seed(1000 * layer + frame))


@cache
def phased_key(frame: int, position: int) -> torch.Tensor:
    """Of the second layer."""
    return rotate(raw_key(frame, 1), frame_phases(torch.tensor([position]), GRID, HEAD))


def write_chunk(ring: KVRing, frames: list[int]) -> list[torch.Tensor]:
    """Keys a chunk attends to, per layer, after writing its own."""
    ring.place(frames)
    seen = []
    for layer in range(LAYERS):
        raw = torch.cat([raw_key(frame, layer) for frame in frames], dim=1)
        k, v, _ = ring.write(layer, rotate(raw, ring.phases), raw)
        assert k.shape == v.shape
        seen.append(v)
    return seen


shapes = st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(0, 7), st.integers(1, 12))


@settings(max_examples=80)
@given(shapes)
def test_a_chunk_attends_to_the_sink_and_the_newest_frames_and_nothing_else(
    shape: tuple[int, int, int, int],
) -> None:
    chunk, sink, extra, chunks = shape
    window = chunk + sink + extra
    ring = make_ring(window, sink)
    for number in range(chunks):
        end = (number + 1) * chunk
        frames = list(range(number * chunk, end))
        for layer, v in enumerate(write_chunk(ring, frames)):
            expected = [f for f in range(end) if f < sink or f >= end - (window - sink)]
            held = [raw_key(f, layer) for f in expected]
            assert v.shape[1] == len(expected) * TOKENS
            rows = {tuple(row.flatten().tolist()) for row in v[0]}
            assert rows == {tuple(row.flatten().tolist()) for frame in held for row in frame[0]}


@settings(max_examples=60)
@given(shapes)
def test_every_key_carries_the_phase_of_its_frame(shape: tuple[int, int, int, int]) -> None:
    chunk, sink, extra, chunks = shape
    window = chunk + sink + extra
    for positions in ("absolute", "windowed"):
        ring = make_ring(window, sink, positions)
        for number in range(chunks):
            end = (number + 1) * chunk
            write_chunk(ring, list(range(number * chunk, end)))
            for slot, frame in enumerate(ring.slots.frames):
                if frame < 0:
                    continue
                far = positions == "windowed" and slot < sink
                position = max(frame, end - window + slot) if far else frame
                found = ring.k[1][:, slot * TOKENS : (slot + 1) * TOKENS]
                assert torch.allclose(found, phased_key(frame, position), atol=2e-5)


@settings(max_examples=40)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 4), st.integers(0, 9), st.integers(1, 4))
def test_a_sink_that_is_written_again_late_is_turned_from_its_own_frame(
    chunk: int, sink: int, extra: int, late: int, more: int
) -> None:
    """As a recompute does it: the window is rebuilt long after the sink's frames were new, at their distance
    by then."""
    window = chunk + sink + extra
    ring = make_ring(window, sink, "windowed")
    first = window + late * chunk  # the chunk that is next
    context = [*range(sink), *range(first - (window - sink - chunk), first)]
    for at in range(0, len(context), chunk):
        group = context[at : at + chunk]
        ring.place(group, end_frame=first + chunk)
        for layer in range(LAYERS):
            raw = torch.cat([raw_key(frame, layer) for frame in group], dim=1)
            ring.write(layer, rotate(raw, ring.phases), raw)
    for number in range(more):
        end = first + (number + 1) * chunk
        write_chunk(ring, list(range(end - chunk, end)))
        for slot, frame in enumerate(ring.slots.frames):
            position = end - window + slot if slot < sink else frame
            found = ring.k[1][:, slot * TOKENS : (slot + 1) * TOKENS]
            assert torch.allclose(found, phased_key(frame, position), atol=2e-5), (slot, frame)


def test_nothing_moves_and_the_shape_is_fixed_once_the_window_is_full() -> None:
    ring = make_ring(window=6, sink=2)
    storage = ring.k.data_ptr(), ring.v.data_ptr()
    shapes = [write_chunk(ring, [2 * n, 2 * n + 1])[0].shape for n in range(50)]
    assert set(shapes[2:]) == {(1, 6 * TOKENS, HEADS, HEAD)}
    assert storage == (ring.k.data_ptr(), ring.v.data_ptr())


def test_writing_a_chunk_again_takes_the_same_slots() -> None:
    ring = make_ring(window=4, sink=1)
    for frames in ([0, 1], [2, 3], [4, 5]):
        write_chunk(ring, frames)
    before = list(ring.slots.frames), ring.k.clone()
    write_chunk(ring, [4, 5])
    assert list(ring.slots.frames) == before[0]
    assert torch.equal(ring.k, before[1])


def test_a_bias_lowers_the_past_and_leaves_the_chunk_alone() -> None:
    ring = make_ring(window=4, sink=0)
    write_chunk(ring, [0, 1])
    ring.place([2, 3], kv_bias=0.5)
    _, _, bias = ring.write(0, torch.zeros(1, 4, HEADS, HEAD), torch.zeros(1, 4, HEADS, HEAD))
    assert bias is not None
    assert torch.allclose(bias.exp().flatten(), torch.tensor([0.5] * 4 + [1.0] * 4))


def test_bytes_are_counted_to_the_last_one() -> None:
    ring = make_ring(window=5, sink=2, positions="windowed")
    assert ring.num_bytes == 4 * LAYERS * HEADS * HEAD * TOKENS * (2 * 5 + 2)


class FromTheHost(TorchDispatchMode):
    """Operations that take a tensor of the host's to another device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        answer = function(*args, **(kwargs or {}))
        given = [arg for arg in args if isinstance(arg, torch.Tensor)]
        if (
            isinstance(answer, torch.Tensor)
            and answer.device.type == "meta"
            and any(arg.device.type == "cpu" for arg in given)
        ):
            self.seen.append(str(function))
        return answer


@pytest.mark.parametrize("positions", ["absolute", "windowed"])
def test_placing_frames_brings_nothing_from_the_host(positions: str) -> None:
    shape = RingShape(
        layers=LAYERS, heads=HEADS, head_width=HEAD, grid=GRID, window=6, sink=2, positions=positions
    )
    ring = KVRing(shape, device=torch.device("meta"), dtype=torch.float32)
    with FromTheHost() as brought:
        for start in range(0, 12, 3):
            ring.place([start, start + 1, start + 2])
    assert brought.seen == []
