"""Video chapter 2, what is asked of an answer. The engine's own ring judges it."""

from __future__ import annotations

from types import ModuleType

import torch

from course.brook import CPU
from course.chapters.video_mask.mask_to_pieces import block_causal
from millstream.core.chunk_work import tokens_per_frame
from millstream.core.config import GIB
from millstream.core.presets import find_model
from millstream.models.kv import KVRing
from millstream.models.ring_shape import RingShape
from millstream.planner.memory import window_bytes


def judge_frames_see_what_the_mask_shows(answer: ModuleType) -> None:
    """Where does the frame's chunk end? Count `window` frames back from there."""
    for chunks, frames, window in ((3, 2, 4), (4, 3, 6), (5, 1, 2)):
        mask = block_causal(chunks, frames, window)
        for frame in range(chunks * frames):
            found = [bool(answer.sees(frame, other, frames, window)) for other in range(chunks * frames)]
            assert found == mask[frame].tolist(), (
                f"frame {frame} of chunks of {frames}, window {window}: {found}"
            )


def judge_slots_are_those_of_the_engines_ring(answer: ModuleType) -> None:
    """Up to `window` frames each has its own slot. After that only the slots behind the sink are used, round
    and round."""
    for window, sink in ((4, 0), (4, 1), (6, 2)):
        ring = KVRing(
            RingShape(layers=1, heads=1, head_width=6, grid=(1, 1), window=window, sink=sink),
            device=CPU,
            dtype=torch.float32,
        )
        for frame in range(11):
            ring.place([frame])
            found = list(answer.slots_after(frame + 1, window, sink))
            assert found == ring.slots.frames, (
                f"after frame {frame}, window {window}, sink {sink}: {found}, the ring has "
                f"{ring.slots.frames}"
            )


def judge_bytes_are_the_planners(answer: ModuleType) -> None:
    """Keys and values: two numbers for each token, layer and unit of width."""
    for name in ("brook", "wan2.1-t2v-1.3b"):
        spec = find_model(name)
        tokens = tokens_per_frame(spec.dit, spec.stream)
        expected = window_bytes(spec.dit, spec.stream, value_bytes=2)
        found = answer.ring_bytes(spec.stream.window, tokens, spec.dit.layers, spec.dit.width, 2)
        assert found == expected, f"{name}: {found / GIB:.4f} GiB, the planner says {expected / GIB:.4f}"
