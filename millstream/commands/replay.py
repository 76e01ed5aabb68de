"""`millstream replay`: a journal generated again, compared, or written out as video."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch

from millstream.commands.engine_from_options import check_or_join, open_engine
from millstream.commands.memory import plain_out_of_memory
from millstream.commands.progress import ChunkProgress
from millstream.core.config import pixel_frames
from millstream.core.engine_config import EngineConfig
from millstream.core.errors import JournalError
from millstream.core.files import file_digest
from millstream.core.mesh_limits import MeshLimits
from millstream.core.speed import dtype_of, parse_speed
from millstream.core.topology import Topology
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.engine.replay import differences, replay
from millstream.engine.snapshot import Snapshot
from millstream.engine.staggered import refuse_stream_batch
from millstream.session.journal import Header, Journal
from millstream.session.journal_path import read_path
from millstream.video.reader import VideoReader
from millstream.video.writer import VideoWriter


def run_replay(
    path: Path,
    *,
    check: bool,
    out: Path | None,
    weights: list[str],
    video: Path | None,
    start: Path | None,
    device: str | None,
    fast: str,
    precision: str,
    topology: str,
    limits: str,
    overwrite: bool,
    quiet: bool,
) -> int:
    """Returns how many chunks differ from what the journal says. `auto` is as the journal has it."""
    if not check and out is None:
        raise JournalError("nothing to do: give --check to compare, --out FILE to write the video again, or both")
    journal = read_path(path)
    if check and not journal.chunks:
        raise JournalError(f"{path} has no complete chunk, so there is nothing to compare; was it cut short?")
    header = journal.header
    torch.set_num_threads(header.threads)
    config = EngineConfig(
        model=header.model,
        weights=tuple(weights) or header.weights,
        loras=header.loras,
        device=device or header.device,
        dtype=header.dtype if precision == "auto" else dtype_of(precision),
        topology=Topology.parse(topology),
        limits=MeshLimits.parse(limits),
        speed=parse_speed(fast, precision, automatic=header.speed),
        compile_backend="" if header.compile == "off" else header.compile,
    )
    refuse_stream_batch(header.stream_batch, header.config, config.speed)
    check_or_join(config)
    with ExitStack() as stack, plain_out_of_memory():
        reader = stack.enter_context(_open_input(header, video)) if header.input else None
        writer = stack.enter_context(VideoWriter(out, fps=header.config.fps, overwrite=overwrite)) if out else None
        engine = stack.enter_context(open_engine(config, header.config))
        num_frames = _num_frames(journal)
        progress = stack.enter_context(ChunkProgress(f"replay {path.name}", total_frames=num_frames, quiet=quiet))
        _warn(progress, engine, journal)
        differing = 0
        saved = _read_start(engine, header, start or path.parent / header.start.path) if header.start else None
        for replayed in replay(engine, journal, reader.frames() if reader else None, saved):
            frames = replayed.chunk.frames[: num_frames - progress.totals.frames]
            progress.add(replayed.chunk.timing, len(frames))
            if writer:
                writer.write(frames)
            if not replayed.identical:
                differing += 1
                progress.warn(f"chunk {replayed.chunk.index} differs: {replayed.recorded} then, {replayed.chunk.digest} now")
        return differing


def _warn(progress: ChunkProgress, engine: Engine, journal: Journal) -> None:
    if journal.cut_short:
        progress.warn(f"the journal's last line is cut short; {len(journal.chunks)} complete chunks are replayed")
    for difference in differences(engine, journal.header):
        progress.warn(f"not as it was, bits may differ: {difference}")


def _open_input(header: Header, video: Path | None) -> VideoReader:
    assert header.input is not None
    path = video or Path(header.input.path)
    reader = VideoReader(path, size=(header.config.height, header.config.width))
    if file_digest(path) != header.input.digest:
        reader.close()
        raise JournalError(f"{path} is not the video this journal was made from; give the right one with --input")
    return reader


def _read_start(engine: Engine, header: Header, path: Path) -> Snapshot:
    assert header.start is not None
    if not path.is_file():
        raise JournalError(f"{path}, which this session went on from, is not there; give the snapshot with --snapshot")
    if file_digest(path) != header.start.digest:
        raise JournalError(f"{path} is not the snapshot this session went on from; give the right one with --snapshot")
    return snapshot.read(path, engine, header.fingerprint)


def _num_frames(journal: Journal) -> int:
    """As many as the first run showed, or as the chunks that were recorded hold."""
    held = sum(pixel_frames(line.envelope.start_frame, line.envelope.frames) for line in journal.chunks)
    return held if journal.header.num_frames is None else min(held, journal.header.num_frames)
