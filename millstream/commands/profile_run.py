"""`millstream profile run`: stream some chunks, the last of them under torch.profiler, and write what it saw.

Bounded: so many chunks and no more. The chunks before are timed by spans alone, so the trace says how much slower the
profiler made it.
"""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from millstream.commands.memory import plain_out_of_memory
from millstream.commands.paths import find_weights
from millstream.core.config import StreamConfig
from millstream.core.errors import ConfigError
from millstream.core.files import Staging
from millstream.core.presets import find_model
from millstream.core.trace import chrome_trace
from millstream.profiler.compilation import CompilerLog
from millstream.runtime.engine import Engine, stream_config
from millstream.runtime.session import Chunk, Session
from millstream.server.video_writer import VideoWriter

MAX_CHUNKS = 64
"""Under the profiler: a chunk of a large model is some twenty thousand events."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileRequest:
    prompt: str
    model: str
    weights: list[str]
    out: Path
    schedule: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of StreamConfig that were given."""
    chunks: int = 4
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    clip: Path | None = None
    """Write the video too, as part of what is profiled."""
    spans_only: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.chunks <= MAX_CHUNKS:
            raise ConfigError(f"--chunks must be 1 to {MAX_CHUNKS}: a trace is large and few chunks tell, got {self.chunks}")
        if not self.out.name.endswith((".json", ".json.gz")):
            raise ConfigError(f"--out must end in .json or .json.gz, got {self.out.name!r}")


def run_profile(request: ProfileRequest) -> Path:
    """Where the trace lies."""
    spec = find_model(request.model)
    weights = find_weights(request.model, request.weights)
    config = stream_config(spec.stream, request.schedule, **request.changes)
    if request.threads:
        torch.set_num_threads(request.threads)
    with ExitStack() as stack, plain_out_of_memory():
        staging = stack.enter_context(_staging(request.out))
        engine = Engine(request.model, weights=weights, device=request.device, dtype=request.dtype)
        session = stack.enter_context(engine.session(request.prompt, config=config))
        writer = stack.enter_context(VideoWriter(request.clip, fps=config.fps, overwrite=True)) if request.clip else None
        compiler = stack.enter_context(hear_the_compiler())
        warm = _stream(session, engine, writer, _warm_up(config))
        # Neither the first chunk, which reads the prompt, nor those over a window that is not full
        plain = _stream(session, engine, writer, request.chunks)
        about = _about(engine, config, plain=plain, warm_up=len(warm))
        if request.spans_only:
            text = json.dumps(chrome_trace(engine.generator.stopwatch.spans, metadata=about))
            _write_packed(staging.path(request.out.name), text.encode(), packed=request.out.suffix == ".gz")
        else:
            _capture(request, session, engine, writer, about, compiler, staging.path(request.out.name))
    return request.out


def _capture(
    request: ProfileRequest,
    session: Session,
    engine: Engine,
    writer: VideoWriter | None,
    about: dict[str, Any],
    compiler: CompilerLog,
    path: Path,
) -> None:
    on_gpu = engine.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    engine.generator.stopwatch.annotate = True
    with profile(activities=activities, record_shapes=True, profile_memory=True) as profiler:
        seen = _stream(session, engine, writer, request.chunks)
        if on_gpu:
            torch.cuda.synchronize(engine.device)
            about["allocation_retries"] = torch.cuda.memory_stats(engine.device).get("num_alloc_retries", 0)
        about["slower_than_unprofiled"] = median(seen) / about["chunk_ms"]
        about["compiler"] = [asdict(place) for place in compiler.places()]
        profiler.add_metadata_json("millstream", json.dumps(about))
    engine.generator.stopwatch.annotate = False
    # The exporter packs a file only if its name says so, and the staged one ends otherwise.
    plain = path.with_name(path.name + ".json")
    profiler.export_chrome_trace(str(plain))
    try:
        _write_packed(path, plain.read_bytes(), packed=request.out.suffix == ".gz")
    finally:
        plain.unlink()


def _stream(session: Session, engine: Engine, writer: VideoWriter | None, chunks: int) -> list[float]:
    """Milliseconds of each."""
    times = []
    for chunk in session.stream(chunks):
        times.append(chunk.timing.total_ms + _write_frames(engine, writer, chunk))
    return times


def _write_frames(engine: Engine, writer: VideoWriter | None, chunk: Chunk) -> float:
    if writer is None:
        return 0.0
    with engine.generator.stopwatch.span("write"):
        writer.write(chunk.frames)
    return sum(engine.generator.stopwatch.lap().values())


def _warm_up(config: StreamConfig) -> int:
    """Until the window is full, and one more."""
    return 1 + -(-config.window // config.frames_per_chunk)


def _about(engine: Engine, config: StreamConfig, *, plain: list[float], warm_up: int) -> dict[str, Any]:
    return {
        "rank": 0,
        "model": engine.spec.name,
        "size": f"{config.height}x{config.width}",
        "window": config.window,
        "steps": list(config.steps),
        "dtype": str(engine.dtype).removeprefix("torch."),
        "device": engine.device.type,
        "threads": torch.get_num_threads(),
        "warm_up_chunks": warm_up,
        "chunk_ms": median(plain),
    }


@contextmanager
def hear_the_compiler() -> Iterator[CompilerLog]:
    """Hears of graph breaks and recompilations, and gives the compiler's log back as it was."""
    heard, handler = CompilerLog(), _Ear()
    handler.heard = heard
    logger = logging.getLogger("torch._dynamo")
    torch._logging.set_logs(graph_breaks=True, recompiles=True)
    silenced = [(each, each.level) for each in logger.handlers]
    for each, _ in silenced:
        each.setLevel(logging.CRITICAL)
    logger.addHandler(handler)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)
        for each, level in silenced:
            each.setLevel(level)
        torch._logging.set_logs()


class _Ear(logging.Handler):
    heard: CompilerLog

    def emit(self, record: logging.LogRecord) -> None:
        for line in record.getMessage().splitlines():
            self.heard.feed(line)


def _write_packed(path: Path, data: bytes, *, packed: bool) -> None:
    path.write_bytes(gzip.compress(data, compresslevel=6) if packed else data)


def _staging(out: Path) -> Staging:
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; choose another --out")
    return Staging(out.parent)
