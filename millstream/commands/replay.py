"""`millstream replay`: a journal generated again, compared, or written out as video."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.commands.options import Limits, Overwrite, Quiet, TopologyName, Weights, with_options
from millstream.core.engine_config import EngineConfig
from millstream.core.errors import JournalError
from millstream.core.files import file_digest
from millstream.core.mesh_limits import MeshLimits
from millstream.core.speed import dtype_of, parse_speed
from millstream.core.topology import Topology

if TYPE_CHECKING:
    from millstream.commands.progress import ChunkProgress
    from millstream.engine.engine import Engine
    from millstream.engine.snapshot import Snapshot
    from millstream.session.journal import Header, Journal
    from millstream.video.reader import VideoReader


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """Choose the journal to run again, and the device; `auto` is as the journal has it."""

    journal: Annotated[Path, typer.Argument(help="A journal that generate or serve wrote.")]
    check: Annotated[
        bool, typer.Option("--check", help="Compare every chunk with the journal; exit 1 if one differs.")
    ] = False
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the video again.", show_default=False)
    ] = None
    weights: Weights = None
    video: Annotated[
        Path | None,
        typer.Option("--input", "-i", help="The input video, if it has moved.", show_default=False),
    ] = None
    snapshot: Annotated[
        Path | None,
        typer.Option(help="What its session went on from, if that has moved.", show_default=False),
    ] = None
    device: Annotated[
        str | None, typer.Option(help="Another device than the journal's.", show_default=False)
    ] = None
    fast: Annotated[
        str, typer.Option(help="auto is what the journal was made with; else as generate has it.")
    ] = "auto"
    precision: Annotated[str, typer.Option("--precision", "--dtype", help="auto is the journal's.")] = "auto"
    topology: TopologyName = "local"
    mesh_limits: Limits = ""
    overwrite: Overwrite = False
    quiet: Quiet = False


@with_options
def replay(options: ReplayOptions) -> None:
    """Run a journal again: the same controls, the same noise, the same bits.

    Bits are promised on the same kind of device with the same number of threads and the same speed-ups;
    otherwise they may differ in rounding.
    """
    differing = run_replay(options)
    if options.check:
        typer.echo(f"{differing} chunks differ" if differing else "identical")
    if options.out is not None:
        typer.echo(options.out)
    if options.check and differing:
        raise typer.Exit(1)


def run_replay(options: ReplayOptions) -> int:
    """Generate the journal's chunks again; return how many differ from what it says."""
    import torch

    from millstream.commands.engine_from_options import check_or_join, open_engine
    from millstream.commands.memory import plain_out_of_memory
    from millstream.commands.progress import ChunkProgress
    from millstream.engine.replay import replay as replay_chunks
    from millstream.engine.staggered import refuse_stream_batch
    from millstream.session.journal_path import read_path
    from millstream.video.writer import VideoWriter

    path = options.journal
    if not options.check and options.out is None:
        raise JournalError(
            "nothing to do: give --check to compare, --out FILE to write the video again, or both"
        )
    journal = read_path(path)
    if options.check and not journal.chunks:
        raise JournalError(f"{path} has no complete chunk, so there is nothing to compare; was it cut short?")
    header = journal.header
    torch.set_num_threads(header.threads)
    config = EngineConfig(
        model=header.model,
        weights=tuple(options.weights or ()) or header.weights,
        loras=header.loras,
        device=options.device or header.device,
        dtype=header.dtype if options.precision == "auto" else dtype_of(options.precision),
        topology=Topology.parse(options.topology),
        limits=MeshLimits.parse(options.mesh_limits),
        speed=parse_speed(options.fast, options.precision, automatic=header.speed),
        compile_backend="" if header.compile == "off" else header.compile,
    )
    refuse_stream_batch(header.stream_batch, header.config, config.speed)
    check_or_join(config)
    with ExitStack() as stack, plain_out_of_memory():
        reader = stack.enter_context(_open_input(header, options.video)) if header.input else None
        writer = None
        if options.out is not None:
            writer = stack.enter_context(
                VideoWriter(options.out, fps=header.config.fps, overwrite=options.overwrite)
            )
        engine = stack.enter_context(open_engine(config, header.config))
        num_frames = _num_frames(journal)
        progress = stack.enter_context(
            ChunkProgress(f"replay {path.name}", total_frames=num_frames, quiet=options.quiet)
        )
        _warn(progress, engine, journal)
        differing = 0
        saved = (
            _read_start(engine, header, options.snapshot or path.parent / header.start.path)
            if header.start
            else None
        )
        for replayed in replay_chunks(engine, journal, reader.frames() if reader else None, saved):
            frames = replayed.chunk.frames[: num_frames - progress.totals.frames]
            progress.add(replayed.chunk.timing, len(frames))
            if writer:
                writer.write(frames)
            if not replayed.identical:
                differing += 1
                progress.warn(
                    f"chunk {replayed.chunk.index} differs: {replayed.recorded} then, "
                    f"{replayed.chunk.digest} now"
                )
        return differing


def _warn(progress: ChunkProgress, engine: Engine, journal: Journal) -> None:
    if journal.cut_short:
        progress.warn(
            f"the journal's last line is cut short; {len(journal.chunks)} complete chunks are replayed"
        )
    from millstream.engine.replay import differences

    for difference in differences(engine, journal.header):
        progress.warn(f"not as it was, bits may differ: {difference}")


def _open_input(header: Header, video: Path | None) -> VideoReader:
    from millstream.video.reader import VideoReader

    assert header.input is not None
    path = video or Path(header.input.path)
    reader = VideoReader(path, size=(header.config.height, header.config.width))
    if file_digest(path) != header.input.digest:
        reader.close()
        raise JournalError(
            f"{path} is not the video this journal was made from; give the right one with --input"
        )
    return reader


def _read_start(engine: Engine, header: Header, path: Path) -> Snapshot:
    from millstream.engine import snapshot

    assert header.start is not None
    if not path.is_file():
        raise JournalError(
            f"{path}, which this session went on from, is not there; give the snapshot with --snapshot"
        )
    if file_digest(path) != header.start.digest:
        raise JournalError(
            f"{path} is not the snapshot this session went on from; give the right one with --snapshot"
        )
    return snapshot.read(path, engine, header.fingerprint)


def _num_frames(journal: Journal) -> int:
    """As many as the first run showed, or as the chunks that were recorded hold."""
    held = sum(line.envelope.num_shown for line in journal.chunks)
    return held if journal.header.num_frames is None else min(held, journal.header.num_frames)
