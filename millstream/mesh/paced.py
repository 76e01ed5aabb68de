"""Stages whose times are set: a real mesh and a real front that each take as long as they are told to, by
sleeping.

What is measured is then the overlap and the wire, not how fast this machine is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from torch import Tensor

from millstream.core.config import SPATIAL_STRIDE, pixel_frames
from millstream.generation.generator import Generator
from millstream.generation.stopwatch import Stopwatch
from millstream.mesh.config import MeshConfig
from millstream.mesh.rank import run_rank
from millstream.mesh.rendezvous import MeetingPoint
from millstream.models.carry import VAEState
from millstream.models.dit import CausalDiT
from millstream.parallel.mesh_dit import MeshDiT
from millstream.wire.parcel import Delivery, Parcel


class Padded:
    """A block that takes a given time, if it does not take longer."""

    def __init__(self, ms: float) -> None:
        self._ms = ms

    def __enter__(self) -> None:
        self._until = time.perf_counter() + self._ms / 1e3

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while (left := self._until - time.perf_counter()) > 0:
            time.sleep(left)


class PacedGenerator(Generator):
    """Takes `stage1_ms` for a chunk."""

    def __init__(self, dit: CausalDiT | MeshDiT, stopwatch: Stopwatch, *, stage1_ms: float) -> None:
        super().__init__(dit, stopwatch)
        self._stage1_ms = stage1_ms

    def _infer(self, parcels: Sequence[Parcel]) -> list[Delivery]:
        with Padded(self._stage1_ms):
            return super()._infer(parcels)


@dataclass(frozen=True, slots=True)
class PacedVAE:
    """Shows nothing, and takes `chunk_ms` for a chunk of it, in proportion for a part; `encode_ms` for an
    anchor."""

    channels: int
    frames_per_chunk: int
    chunk_ms: float
    encode_ms: float
    stride: int = SPATIAL_STRIDE

    def encode(self, pixels_BTCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        batch, _, _, height, width = pixels_BTCYX.shape
        with Padded(self.encode_ms):
            return pixels_BTCYX.new_zeros(
                batch, 1, self.channels, height // self.stride, width // self.stride
            ), ()

    def decode(self, latents_BFCYX: Tensor, state: VAEState = ()) -> tuple[Tensor, VAEState]:
        batch, frames, _, rows, columns = latents_BFCYX.shape
        with Padded(self.chunk_ms * frames / self.frames_per_chunk):
            shown = pixel_frames(len(state), frames)
            pixels = latents_BFCYX.new_zeros(batch, shown, 3, self.stride * rows, self.stride * columns)
            return pixels, (latents_BFCYX[:, -1],)


def run_paced_rank(config: MeshConfig, rank: int, meeting: MeetingPoint, *, stage1_ms: float) -> None:
    run_rank(config, rank, meeting, make_generator=partial(PacedGenerator, stage1_ms=stage1_ms))
