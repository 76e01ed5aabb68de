"""`millstream bench mesh`: one stream on one device and on every topology that the devices of this machine
allow, side by side.

Each is an engine of its own, one after the other. A chunk's time and frames a second are measured with the
window full and every call warm; after them, a few more chunks of the leader are traced, for the time that its
collectives take and how much of it no computation covers. Where ranks share a device, or have none, they
speak over gloo, and the report says so.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from millstream.commands.bench.sessions import SETTLE
from millstream.commands.memory import plain_out_of_memory
from millstream.commands.profile.capture import ProfiledGenerator, RankCapture, rank_path
from millstream.commands.report import describe, make_folder, spelled, tell
from millstream.core.config import DiTConfig, ModelSpec, StreamConfig
from millstream.core.engine_config import EngineConfig
from millstream.core.errors import ConfigError
from millstream.core.examples import DEFAULT_PROMPT
from millstream.core.overlap import ChunkPace, overlap_of
from millstream.core.presets import find_model
from millstream.core.topology import LEADER, LOCAL, Topology, divisors
from millstream.engine.device_choice import choose_device
from millstream.engine.engine import Engine, stream_config
from millstream.engine.vae_place import refuse_split
from millstream.mesh.launch import launcher, placement
from millstream.mesh.rank import backend_for, run_rank
from millstream.models.fast.recorded import chunks_before
from millstream.parallel.collectives import GLOO
from millstream.parallel.tiles import choose_grid
from millstream.profiler.reading import read

SESSION = "bench-mesh"
BETWEEN = 3
TRACED = 2
"""Chunks between the timed and the traced ones, of which a mesh is ahead of its front, and traced ones."""
CPU_RANKS = 2
"""Ranks that a machine without GPUs is assumed to have cores for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshRequest:
    engine: EngineConfig
    topologies: tuple[Topology, ...] = ()
    """None: all that the devices allow."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of StreamConfig that were given."""
    tiles: bool = False
    """True to measure each also with its frames in tiles, one on each rank's device."""
    chunks: int = 20

    def __post_init__(self) -> None:
        if not 2 <= self.chunks <= 10_000:
            raise ConfigError(f"--chunks must be 2 to 10000, got {self.chunks}")
        place = placement()
        if place is not None and place.world_size > 1:
            raise ConfigError("bench mesh starts its ranks itself; leave torchrun out")


@dataclass(frozen=True, kw_only=True, slots=True)
class MeshResult:
    """One line of the table. Times are milliseconds, medians of a chunk."""

    topology: str
    compiled_by: str
    tiles: int
    """Tiles that frames are cut into, each on the device of a rank; 1 where the front makes them whole."""
    through: str
    """Transport between ranks: nccl, or gloo, which passes through host memory; empty for one process."""
    start_s: float
    """Seconds until the first chunk is there: weights, ranks, and what is compiled for it."""
    chunk_ms: float
    fps: float
    front_ms: float
    mesh_ms: float
    idle_ms: float
    """Time the mesh is idle before a chunk."""
    overlap: float
    collectives_ms: float
    """Time of the leader's collectives for a chunk, including calls between two ranks."""
    exposed_ms: float
    """Part of the collectives' time that no computation covers."""
    off_by: float
    """Mean difference of the first chunk's pixels from those of one device, in levels of 255."""


def run_bench_mesh(request: MeshRequest, *, as_json: bool, out: Path | None) -> None:
    make_folder(out)
    spec = find_model(request.engine.model)
    config = stream_config(spec.stream, None, **request.changes)
    device = choose_device(request.engine.device)
    chosen = request.topologies or allowed(spec.dit, device_count(device), front_apart=device.type != "cuda")
    for topology in chosen:
        topology.check(spec.dit)
    if request.tiles:
        refuse_tiles(spec, config, chosen)
    with plain_out_of_memory():
        found = [*measure(request, config, chosen)]
    measured = {"devices": device_count(device), "runs": [asdict(each) for each in found]}
    report = describe("mesh", spelled(request) | {"stream": asdict(config)}, measured)
    tell(report, as_json=as_json, out=out, show=lambda: Console().print(_table(found)))


def refuse_tiles(spec: ModelSpec, config: StreamConfig, topologies: Sequence[Topology]) -> None:
    """Raise where frames cannot be cut into a tile for each rank."""
    refuse_split(spec)
    ranks = [topology.mesh_size for topology in topologies]
    if max(ranks) < 2:
        raise ConfigError(
            f"--tiles cuts pictures for 2 ranks or more, {', '.join(map(str, topologies))} has one; leave it "
            "out"
        )
    for count in ranks:
        choose_grid(config.latent_size, count)


def device_count(device: torch.device) -> int:
    return torch.cuda.device_count() if device.type == "cuda" else CPU_RANKS


def rank_devices(topology: Topology, device: torch.device) -> tuple[str, ...]:
    """Where the ranks of a mesh work, as `--vae-devices` has it."""
    places = [topology.device_of(rank) % device_count(device) for rank in topology.mesh_ranks]
    return tuple(f"cuda:{place}" if device.type == "cuda" else "cpu" for place in places)


def allowed(dit: DiTConfig, devices: int, *, front_apart: bool) -> tuple[Topology, ...]:
    """Return the topologies that give every rank its own device: each axis over 2, 4, 8, ... of them. Where
    ranks are processes of one CPU, the front is apart."""
    sizes = [2**power for power in range(1, 7) if 2**power <= devices]
    axes = {"tp": divisors(dit, "tp"), "sp": divisors(dit, "sp"), "pp": range(1, dit.layers + 1)}
    found = [
        Topology(**{axis: size}, front_apart=front_apart)
        for size in sizes
        for axis in axes
        if size in axes[axis]
    ]
    if devices >= 4 and 2 in axes["tp"] and dit.layers > 1:
        found.append(Topology(pp=2, tp=2, front_apart=front_apart))
    if not found:
        raise ConfigError(
            f"{devices} GPU is here, and nothing to compare it with; name a topology whose ranks share it: "
            "--topology front+tp2"
        )
    return tuple(found)


def measure(
    request: MeshRequest, config: StreamConfig, topologies: Sequence[Topology]
) -> Iterator[MeshResult]:
    """One device first; where blocks are to be compiled, each as it is and compiled; where asked for, also in
    tiles."""
    compilers = ("", request.engine.compile_backend) if request.engine.compile_backend else ("",)
    reference: NDArray[np.uint8] | None = None
    for topology in (LOCAL, *topologies):
        in_tiles = rank_devices(topology, choose_device(request.engine.device))
        places = ((), in_tiles) if request.tiles and len(in_tiles) > 1 else ((),)
        for compiler, place in product(compilers, places):
            engine = replace(request.engine, topology=topology, compile_backend=compiler, vae_devices=place)
            result, pictures = _measure(engine, config, request.chunks, reference)
            reference = pictures if reference is None else reference
            yield result


@dataclass(frozen=True, slots=True)
class MeasuredStream:
    """A stream of one engine, as its front saw it."""

    through: str
    pictures: NDArray[np.uint8]
    """Frames of the first chunk."""
    start_s: float
    shown: list[tuple[float, int]]
    """When each chunk's frames were there, by `time.perf_counter`, and how many."""
    paces: list[ChunkPace]


def _measure(
    on: EngineConfig, config: StreamConfig, chunks: int, reference: NDArray[np.uint8] | None
) -> tuple[MeshResult, NDArray[np.uint8]]:
    settling = config.chunks_to_fill + SETTLE + (chunks_before(1) if on.speed.graphs else 0)
    alone = on.topology.is_local
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "trace.json"
        first = settling + chunks + BETWEEN
        capture = RankCapture(out=out, ranks=(LEADER,), session_id=SESSION, first_chunk=first, chunks=TRACED)
        streamed = _streamed(on, config, capture)
        talk, exposed = (0.0, 0.0) if alone else _talk_ms(rank_path(out, LEADER))
    timed = streamed.shown[settling - 1 : settling + chunks]
    seconds = [after - before for (before, _), (after, _) in pairwise(timed)]
    pace = overlap_of(streamed.paces[: settling + chunks - 1], left_out=settling - 1)
    result = MeshResult(
        topology=str(on.topology),
        compiled_by=on.compile_backend,
        tiles=len(on.vae_devices) or 1,
        through=streamed.through,
        start_s=streamed.start_s,
        chunk_ms=1e3 * median(seconds),
        fps=sum(frames for _, frames in timed[1:]) / sum(seconds),
        front_ms=pace.stage0_ms,
        mesh_ms=pace.stage1_ms,
        idle_ms=0.0 if alone else pace.idle_ms,
        overlap=0.0 if alone else pace.score,
        collectives_ms=talk,
        exposed_ms=exposed,
        off_by=0.0
        if reference is None
        else float(np.abs(streamed.pictures.astype(np.int16) - reference).mean()),
    )
    return result, streamed.pictures


def _streamed(on: EngineConfig, config: StreamConfig, capture: RankCapture) -> MeasuredStream:
    """All chunks, and the leader's trace of the last ones."""
    begun = time.perf_counter()
    run = partial(run_rank, make_generator=partial(ProfiledGenerator, capture=capture))
    with (
        Engine(on, stream=config, launch=partial(launcher, run=run)) as engine,
        engine.session(DEFAULT_PROMPT, config=config, session_id=capture.session_id) as session,
    ):
        stream = engine.stream(session)
        shown = list[tuple[float, int]]()
        chunks = stream.stream(capture.first_chunk + capture.chunks)
        first = next(chunks)
        start_s = time.perf_counter() - begun
        shown.append((time.perf_counter(), len(first.frames)))
        for chunk in chunks:
            shown.append((time.perf_counter(), len(chunk.frames)))
    return MeasuredStream(_through(engine), first.frames, start_s, shown, list(stream.paces))


def _talk_ms(trace: Path) -> tuple[float, float]:
    """Return milliseconds per chunk: those of a rank's collectives, and those of them that no computation
    covers."""
    (leader,) = read([trace]).group.ranks
    talk = leader.collectives | leader.exchanges
    return talk.total / 1e3 / TRACED, (talk - leader.work).total / 1e3 / TRACED


def _through(engine: Engine) -> str:
    if engine.topology.is_local:
        return ""
    return GLOO if backend_for(engine.topology, engine.device.type) == GLOO else "nccl"


def _table(found: Sequence[MeshResult]) -> Table:
    off_by = max(each.off_by for each in found)
    title = (
        f"milliseconds of a chunk; ranks speak through {found[-1].through}; pixels differ by "
        f"{off_by:.2f} at most"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("topology", no_wrap=True)
    for name in ("FPS", "of local", "chunk", "overlap", "talk", "exposed"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        table.add_row(
            f"{each.topology} {each.compiled_by} {'tiles' if each.tiles > 1 else ''}".strip(),
            f"{each.fps:.1f}",
            f"{each.fps / found[0].fps:.2f}",
            f"{each.chunk_ms:.1f}",
            f"{each.overlap:.2f}",
            f"{each.collectives_ms:.1f}",
            f"{each.exposed_ms:.1f}",
        )
    return table
