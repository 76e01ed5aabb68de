"""`millstream bench stream`: one stream on this device, its window full, and where each chunk's time goes.

End to end: a frame counts when it is bytes on the host. Between the first and the last chunk that count
nothing is left out of the wall time; phases are what was measured inside it, and `rest` is what none of them
accounts for.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from millstream.commands.bench.floor import Setting, measure_floor
from millstream.commands.bench.sessions import (
    MAX_SESSIONS,
    MIB,
    measure_sessions,
    settling_chunks,
    show_sessions,
)
from millstream.commands.engine_from_options import load_engine
from millstream.commands.memory import plain_out_of_memory
from millstream.commands.report import describe, make_folder, spelled, tell
from millstream.core.chunk_work import Part, chunk_parts
from millstream.core.config import ModelSpec, StreamConfig
from millstream.core.engine_config import EngineConfig
from millstream.core.errors import ConfigError
from millstream.core.examples import DEFAULT_PROMPT
from millstream.core.presets import find_model
from millstream.core.trace import ChunkTiming
from millstream.engine.engine import Engine, stream_config
from millstream.models.brook.thin import THIN
from millstream.ops.conv3 import find_convolution
from millstream.ops.memory import bytes_in_use, most_bytes_in_use
from millstream.session.chunk import Chunk
from millstream.session.session import Session

MODEL_PHASES = ("step", "commit", "decode")
Floors = dict[str, dict[str, float]]
"""By kind, milliseconds of each phase."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamRequest:
    engine: EngineConfig
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of StreamConfig that were given."""
    chunks: int = 30
    floor: bool = True
    sessions: int = 1
    """Streams at once."""
    together: bool = False
    """True if the streams share their model calls."""

    def __post_init__(self) -> None:
        if not 1 <= self.chunks <= 100_000:
            raise ConfigError(f"--chunks must be 1 to 100000, got {self.chunks}")
        if not 1 <= self.sessions <= MAX_SESSIONS:
            raise ConfigError(f"--sessions must be 1 to {MAX_SESSIONS}, got {self.sessions}")
        if self.together and self.sessions == 1:
            raise ConfigError("--together is for several streams; give --sessions 2 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One chunk as it was measured."""

    period_ms: float
    """Since the chunk before it, frames in hand."""
    frames: int
    phases_ms: dict[str, float]
    calls_ms: tuple[float, ...]
    """Its steps, one by one."""


def run_bench_stream(request: StreamRequest, *, as_json: bool, out: Path | None) -> dict[str, Any]:
    """Measure, tell, and write down if so asked."""
    make_folder(out)
    config = stream_config(find_model(request.engine.model).stream, None, **request.changes)
    with plain_out_of_memory():
        measured = measure(request, config) if request.sessions == 1 else _several(request, config)
    report = describe("stream", spelled(request) | {"stream": asdict(config)}, measured)
    shown = show if request.sessions == 1 else show_sessions
    tell(report, as_json=as_json, out=out, show=lambda: shown(measured, Console()))
    return report


def _several(request: StreamRequest, config: StreamConfig) -> dict[str, Any]:
    return measure_sessions(
        request.engine, config, count=request.sessions, together=request.together, chunks=request.chunks
    )


def measure(request: StreamRequest, config: StreamConfig) -> dict[str, Any]:
    begun = time.perf_counter()
    engine = load_engine(request.engine, config)
    loaded = time.perf_counter()
    session = engine.session(DEFAULT_PROMPT, config=config)
    next(session.stream(1))
    first = time.perf_counter()
    for _ in session.stream(settling_chunks(engine, config) - 1):
        pass
    warm = time.perf_counter()
    steady = bytes_in_use(engine.device)
    samples = _samples(engine, session, request.chunks)
    peak = most_bytes_in_use(engine.device)  # before the floor, which takes memory of its own
    engine.warm_up(session)
    session.close()
    frames = sum(sample.frames for sample in samples)
    again = _first_chunk(engine, config)
    floors = _floors(request, engine, config) if request.floor else {}
    return {
        "speed": engine.speed.names,
        "fp8": engine.speed.fp8,
        "dtype": str(engine.dtype).removeprefix("torch."),
        "fps": 1e3 * frames / sum(sample.period_ms for sample in samples),
        "chunk_ms": _percentiles([sample.period_ms for sample in samples]),
        "phases": _phases(request, engine, config, samples, floors),
        "calls_ms": [
            statistics.median(calls) for calls in zip(*(sample.calls_ms for sample in samples), strict=True)
        ],
        "first_frame_s": {"cold": first - loaded, "warm": again.total_ms / 1e3},
        "first_phases_ms": dict(again.phases_ms),
        "load_s": loaded - begun,
        "warm_up_s": warm - loaded,
        "memory_mib": {"steady": steady / MIB, "end": bytes_in_use(engine.device) / MIB, "peak": peak / MIB},
    }


def _samples(engine: Engine, session: Session, count: int) -> list[Sample]:
    """Measure chunks in the middle of a stream: a device that works ahead makes its first chunk late and its
    last one early."""
    samples = []
    before = time.perf_counter()
    for chunk in engine.stream(session).stream(1 + count + 1):
        now = time.perf_counter()
        samples.append(_sample(engine, session, chunk, 1e3 * (now - before)))
        before = now
    assert len(samples) == 1 + count + 1, f"{len(samples)} chunks of a stream that nothing stops"
    return samples[1:-1]


def _sample(engine: Engine, session: Session, chunk: Chunk, period_ms: float) -> Sample:
    mine = (session.id, chunk.index)
    spans = [
        s.ms
        for s in engine.generator.stopwatch.spans
        if s.name == "step" and (s.work.session, s.work.chunk) == mine
    ]
    each, left = divmod(
        len(spans), len(session.config.steps)
    )  # a call has a beginning and an end, timed apart
    assert left == 0, f"{len(spans)} spans of {len(session.config.steps)} steps"
    return Sample(
        period_ms=period_ms,
        frames=len(chunk.frames),
        phases_ms=dict(chunk.timing.phases_ms),
        calls_ms=tuple(sum(spans[i : i + each]) for i in range(0, len(spans), each)),
    )


def _phases(
    request: StreamRequest, engine: Engine, config: StreamConfig, samples: Sequence[Sample], floors: Floors
) -> dict[str, dict[str, float]]:
    """Median milliseconds of each, what that is in operations and bytes, and how near to each floor."""
    names = [
        *MODEL_PHASES,
        *sorted({name for sample in samples for name in sample.phases_ms} - set(MODEL_PHASES)),
    ]
    medians = {
        name: statistics.median(sample.phases_ms.get(name, 0.0) for sample in samples) for name in names
    }
    medians["rest"] = statistics.median(
        sample.period_ms - sum(sample.phases_ms.values()) for sample in samples
    )
    period = statistics.median(sample.period_ms for sample in samples)
    work = chunk_parts(
        spec_as_it_runs(engine),
        config,
        value_bytes=engine.dtype.itemsize,
        fp8=request.engine.speed.fp8,
        low_attention=request.engine.speed.low_attention,
    )
    if request.engine.speed.paired_commits:  # they are in the steps' time
        work = _paired(work)
        floors = {kind: _paired_ms(floor) for kind, floor in floors.items()}
    found: dict[str, dict[str, float]] = {}
    for name, ms in medians.items():
        found[name] = {"ms": ms, "share": ms / period}
        if name in work and ms:
            found[name] |= _rates(work[name], ms)
        for kind, floor in floors.items():
            if name in floor and ms:
                found[name] |= {f"{kind}_ms": floor[name], f"of_{kind}": ms / floor[name]}
    return found


def _rates(parts: Sequence[Part], ms: float) -> dict[str, float]:
    return {
        "tflop_s": sum(part.flops for part in parts) / ms / 1e9,
        "gb_s": sum(part.moved for part in parts) / ms / 1e6,
    }


def _paired(work: dict[str, tuple[Part, ...]]) -> dict[str, tuple[Part, ...]]:
    return {"step": work["step"] + work["commit"], "decode": work["decode"]}


def _paired_ms(floor: dict[str, float]) -> dict[str, float]:
    return {"step": floor["step"] + floor["commit"], "decode": floor["decode"]}


def _floors(request: StreamRequest, engine: Engine, config: StreamConfig) -> Floors:
    """`floor`, and where calls are made in even waves, `even_floor`, which has them too."""
    own = find_convolution() if engine.speed.own_convolution else None
    fp8 = bool(request.engine.speed.fp8) and engine.device.type == "cuda"
    setting = Setting(device=engine.device, dtype=engine.dtype, fp8=fp8, int8=engine.speed.int8, own=own)
    settings = {"floor": setting} | (
        {"even_floor": replace(setting, even=True)} if engine.speed.even_waves else {}
    )
    spec = spec_as_it_runs(engine)
    chunks = min(request.chunks, 10)
    return {kind: measure_floor(spec, config, each, chunks=chunks) for kind, each in settings.items()}


def spec_as_it_runs(engine: Engine) -> ModelSpec:
    """With the thin decoder, where that is the one."""
    return replace(engine.spec, vae=THIN) if engine.speed.thin_decoder else engine.spec


def _first_chunk(engine: Engine, config: StreamConfig) -> ChunkTiming:
    """From asking for a session to its first frames, in an engine that has streamed before."""
    begun = time.perf_counter()
    with engine.session(DEFAULT_PROMPT, config=config) as session:
        chunk = next(session.stream(1))
        return replace(chunk.timing, total_ms=1e3 * (time.perf_counter() - begun))


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    assert ordered, "no values, no percentiles"
    at = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in at.items()} | {
        "largest": ordered[-1]
    }


def show(measured: dict[str, Any], console: Console) -> None:
    table = Table("phase", "ms", "share", "TFLOP/s", "GB/s", "floor ms", "of floor")
    for name, phase in measured["phases"].items():
        rates = (f"{phase[key]:.1f}" if key in phase else "" for key in ("tflop_s", "gb_s", "floor_ms"))
        ratio = f"{phase['of_floor']:.2f}" if "of_floor" in phase else ""
        table.add_row(name, f"{phase['ms']:.2f}", f"{phase['share']:.1%}", *rates, ratio)
    console.print(table)
    chunk = measured["chunk_ms"]
    memory = measured["memory_mib"]
    first = measured["first_frame_s"]
    console.print(f"{measured['fps']:.2f} frames a second", highlight=False)
    console.print("chunk ms: " + ", ".join(f"{name} {ms:.1f}" for name, ms in chunk.items()), highlight=False)
    console.print("calls ms: " + ", ".join(f"{ms:.1f}" for ms in measured["calls_ms"]), highlight=False)
    console.print(f"first frame: {first['cold']:.2f} s cold, {first['warm']:.2f} s warm", highlight=False)
    console.print(
        "memory MiB: " + ", ".join(f"{name} {size:.0f}" for name, size in memory.items()), highlight=False
    )
