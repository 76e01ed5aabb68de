"""`millstream profile run`: stream some chunks, the last of them under torch.profiler, and write what it saw.

Bounded: so many chunks and no more. The chunks before are timed by spans alone, so the trace says how much
slower the profiler made it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch._logging._internal import set_logs

from millstream.commands.engine_from_options import resolve
from millstream.commands.memory import plain_out_of_memory
from millstream.commands.profile.capture import (
    ProfiledGenerator,
    RankCapture,
    TraceRecorder,
    rank_path,
    write_trace,
)
from millstream.commands.profile.options import ProfileOptions
from millstream.core.config import StreamConfig
from millstream.core.presets import find_model
from millstream.core.topology import FRONT, Topology
from millstream.core.trace import chrome_trace
from millstream.engine.engine import Engine, stream_config
from millstream.mesh.launch import launcher
from millstream.mesh.rank import run_rank
from millstream.models.fast.recorded import chunks_before
from millstream.profiler.compilation import CompilerLog
from millstream.session.chunk import Chunk
from millstream.session.session import Session

if TYPE_CHECKING:
    from millstream.video.writer import VideoWriter

SESSION = "profile"


def run_profile(options: ProfileOptions) -> list[Path]:
    """Where the traces lie, one a rank."""
    options.check()
    on = resolve(options)
    spec = find_model(on.model)
    config = stream_config(spec.stream, options.schedule, **options.changes())
    on.topology.check(spec.dit)
    warm_up = 1 + config.chunks_to_fill  # until the window is full, and one more
    warm_up += chunks_before(len(config.steps)) if on.speed.graphs else 0
    capture = RankCapture(
        out=options.out,
        ranks=options.chosen,
        session_id=SESSION,
        first_chunk=warm_up + options.chunks,
        chunks=options.chunks,
        about={"model": spec.name, "topology": str(on.topology)},
    )
    run = partial(run_rank, make_generator=partial(ProfiledGenerator, capture=capture))
    with ExitStack() as stack, plain_out_of_memory():
        engine = stack.enter_context(Engine(on, launch=partial(launcher, run=run)))
        session = stack.enter_context(engine.session(options.prompt, config=config, session_id=SESSION))
        writer = stack.enter_context(_writer(options.clip, config.fps)) if options.clip else None
        compiler = stack.enter_context(hear_the_compiler())
        streamed = _Streamed(engine, session, writer)
        streamed.chunks(warm_up)
        about = {**_about(engine, config, on.topology), "chunk_ms": median(streamed.chunks(options.chunks))}
        if options.spans:
            text = json.dumps(chrome_trace(engine.parts.stopwatch.spans, metadata=about))
            write_trace(options.out, lambda _: text.encode())
        else:
            _capture_front(options, streamed, about, compiler)
    return [_path(options, rank) for rank in options.chosen]


def _path(options: ProfileOptions, rank: int) -> Path:
    return options.out if Topology.parse(options.topology).is_local else rank_path(options.out, rank)


def _writer(path: Path, fps: float) -> VideoWriter:
    from millstream.video.writer import VideoWriter  # a trace alone needs no video library

    return VideoWriter(path, fps=fps, overwrite=True)


def _capture_front(
    options: ProfileOptions, streamed: _Streamed, about: dict[str, Any], compiler: CompilerLog
) -> None:
    """The chunks that all chosen ranks record, the front's own trace among them if it is chosen."""
    if FRONT not in options.chosen:
        streamed.chunks(options.chunks)
        return
    recorder = TraceRecorder(streamed.engine.parts.stopwatch, streamed.engine.device)
    recorder.begin()
    slower = median(streamed.chunks(options.chunks)) / about["chunk_ms"]
    heard = [asdict(place) for place in compiler.places()]
    recorder.end(_path(options, FRONT), {**about, "slower_than_unprofiled": slower, "compiler": heard})


@dataclass(frozen=True, slots=True)
class _Streamed:
    engine: Engine
    session: Session
    writer: VideoWriter | None

    def chunks(self, count: int) -> list[float]:
        """Milliseconds of each."""
        return [chunk.timing.total_ms + self._write(chunk) for chunk in self.session.stream(count)]

    def _write(self, chunk: Chunk) -> float:
        if self.writer is None:
            return 0.0
        stopwatch = self.engine.parts.stopwatch
        with stopwatch.span("write"):
            self.writer.write(chunk.frames)
        return sum(stopwatch.lap().values())


def _about(engine: Engine, config: StreamConfig, topology: Topology) -> dict[str, Any]:
    return {
        "rank": FRONT,
        "model": engine.spec.name,
        "topology": str(topology),
        "size": f"{config.height}x{config.width}",
        "window": config.window,
        "frames_per_chunk": config.frames_per_chunk,
        "steps": list(config.steps),
        "dtype": str(engine.dtype).removeprefix("torch."),
        "fast": str(engine.speed),
        "device": engine.device.type,
        "threads": torch.get_num_threads(),
    }


@contextmanager
def hear_the_compiler() -> Iterator[CompilerLog]:
    """Hears of graph breaks and recompilations, and gives the compiler's log back as it was."""
    heard = CompilerLog()
    handler = _Ear()
    handler.heard = heard
    logger = logging.getLogger("torch._dynamo")
    set_logs(graph_breaks=True, recompiles=True)
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
        set_logs()


class _Ear(logging.Handler):
    heard: CompilerLog

    def emit(self, record: logging.LogRecord) -> None:
        for line in record.getMessage().splitlines():
            self.heard.feed(line)
