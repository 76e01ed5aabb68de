"""torch.profiler around some chunks of one rank, and the trace it leaves: of this process, or of a rank of
the mesh.

A trace appears whole. Shapes and memory are recorded, stacks are not: they are large, and nothing here reads
them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from millstream.core.files import Staging
from millstream.generation.generator import Generator
from millstream.generation.stopwatch import Stopwatch
from millstream.models.dit import CausalDiT
from millstream.parallel.mesh_dit import MeshDiT
from millstream.wire.parcel import Delivery, Parcel


class TraceRecorder:
    """One capture: from `begin` to `end`, once."""

    def __init__(self, stopwatch: Stopwatch, device: torch.device) -> None:
        self._stopwatch = stopwatch
        self._device = device
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self._profiler = profile(
            activities=activities, record_shapes=True, profile_memory=True, acc_events=True
        )

    def begin(self) -> None:
        self._stopwatch.annotate = True
        self._profiler.start()

    def end(self, path: Path, about: dict[str, Any]) -> None:
        """`about` is written into the trace, which is then at `path`."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            retries = torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0)
            about = {**about, "allocation_retries": retries}
        self._profiler.add_metadata_json("millstream", json.dumps(about))
        self._profiler.stop()
        self._stopwatch.annotate = False
        write_trace(path, self._exported)

    def _exported(self, path: Path) -> bytes:
        # The exporter goes by the name: one that ends in .gz it would pack itself.
        plain = path.with_name(path.name + ".json")
        self._profiler.export_chrome_trace(str(plain))
        try:
            return plain.read_bytes()
        finally:
            plain.unlink()


def write_trace(path: Path, content: Callable[[Path], bytes]) -> None:
    """Packed if the name says so."""
    with Staging(path.parent) as staging:
        place = staging.path(path.name)
        data = content(place)
        place.write_bytes(gzip.compress(data, compresslevel=6) if path.suffix == ".gz" else data)


def rank_path(out: Path, rank: int) -> Path:
    """`trace.json.gz` becomes `trace.rank2.json.gz`."""
    stem, dot, rest = out.name.partition(".json")
    return out.with_name(f"{stem}.rank{rank}{dot}{rest}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCapture:
    """Capture that ranks of a mesh are to make. It is sent to their processes."""

    out: Path
    ranks: tuple[int, ...]
    session_id: str
    first_chunk: int
    chunks: int
    about: dict[str, Any] = field(default_factory=dict)


class ProfiledGenerator(Generator):
    """A generator that records certain chunks of one session, if it is on one of the ranks that are to."""

    def __init__(self, dit: CausalDiT | MeshDiT, stopwatch: Stopwatch, *, capture: RankCapture) -> None:
        super().__init__(dit, stopwatch)
        self._capture = capture
        self._recorder = TraceRecorder(stopwatch, self.device) if stopwatch.rank in capture.ranks else None
        self._recording = False

    def run_together(self, parcels: Sequence[Parcel]) -> list[Delivery]:
        envelope = parcels[0].envelope
        capture = self._capture
        ours = self._recorder is not None and envelope.session_id == capture.session_id
        if ours and envelope.chunk_index == capture.first_chunk:
            assert self._recorder is not None, "checked above"
            assert not self._recording, f"chunk {envelope.chunk_index} comes a second time"
            self._recorder.begin()
            self._recording = True
        deliveries = super().run_together(parcels)
        if self._recording and envelope.chunk_index == capture.first_chunk + capture.chunks - 1:
            assert self._recorder is not None, "it is recording"
            self._recording = False
            rank = self.stopwatch.rank
            self._recorder.end(rank_path(capture.out, rank), {**capture.about, "rank": rank})
        return deliveries
