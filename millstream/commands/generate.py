"""`millstream generate`: a prompt or a video, and a timeline of controls, to a file."""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.commands.options import Overwrite, PastOptions, PlacedOptions, Quiet, with_options
from millstream.core.config import StreamConfig, pixel_frames
from millstream.core.errors import ConfigError
from millstream.core.examples import DEFAULT_PROMPT
from millstream.core.files import file_digest
from millstream.core.presets import find_model

if TYPE_CHECKING:
    from millstream.commands.progress import ChunkProgress
    from millstream.core.controls import AnyControl
    from millstream.core.events import Event
    from millstream.engine.engine import Engine
    from millstream.session.chunk import Chunk
    from millstream.session.journal import InputVideo
    from millstream.session.session import Session

APPROXIMATE = (
    "approximate: {} chunks under way, each seeing the one before it still noisy; "
    "docs/distributed.md has the figures"
)


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(PastOptions, PlacedOptions):
    """Options of `millstream generate`: what it makes, from what, and where it puts it."""

    prompt: Annotated[str, typer.Argument(help="What the stream shows.")] = DEFAULT_PROMPT
    fps: Annotated[float | None, typer.Option(help="Frames a second of the file.", show_default=False)] = None
    seed: Annotated[int, typer.Option(help="The same seed and controls give the same video.")] = 0
    noise_scale: Annotated[
        float | None, typer.Option(help="With --input: share of noise, 0 to 1.", show_default=False)
    ] = None
    motion_gain: Annotated[
        float | None, typer.Option(help="With --input: noise motion adds; 0 is off.", show_default=False)
    ] = None
    out: Annotated[Path, typer.Option("--out", "-o", help="clip.mp4, .webm, .gif, or a folder for PNGs.")] = (
        Path("out/clip.mp4")
    )
    seconds: Annotated[
        float | None, typer.Option(help="Length of the clip; 5 if nothing is said.", show_default=False)
    ] = None
    chunks: Annotated[int | None, typer.Option(help="Length in chunks instead.", show_default=False)] = None
    events: Annotated[Path | None, typer.Option(help="Timeline of controls, JSON.", show_default=False)] = (
        None
    )
    journal: Annotated[
        Path | None, typer.Option(help="Write a journal that replays to the same bits.", show_default=False)
    ] = None
    video: Annotated[
        Path | None, typer.Option("--input", "-i", help="A video to restyle.", show_default=False)
    ] = None
    stream_batch: Annotated[
        int, typer.Option(help="Chunks of the stream under way at once; above 1 the video is approximate.")
    ] = 1
    overwrite: Overwrite = False
    quiet: Quiet = False


@with_options
def generate(options: GenerateOptions) -> None:
    """Turn a prompt, or a video, into video, chunk by chunk.

    [bold]Try[/]: millstream generate "a red balloon over the hills at dusk" --seconds 4

    [bold]Steer it[/]: --events timeline.json, where the file holds
    [{"at": 2, "type": "prompt", "prompt": "a white boat on the sea at dawn", "mode": "recompute"}].
    Types: prompt (mode cut, recompute, keep or blend), cut, steps, seed, noise_scale, window, kv_bias, stop.

    [bold]Repeat it[/]: --journal run.jsonl, then millstream replay run.jsonl --check
    """
    if options.video is None and (options.noise_scale is not None or options.motion_gain is not None):
        raise ConfigError("--noise-scale and --motion-gain act on an input video; give one with --input")
    run_generate(options)
    typer.echo(options.out)


def run_generate(options: GenerateOptions) -> None:
    """Everything that can be refused is refused before a model is loaded; nothing appears unless it is
    whole."""
    from millstream.commands.engine_from_options import (
        check_or_join,
        load_engine,
        refuse_experimental,
        resolve,
    )
    from millstream.commands.memory import plain_out_of_memory
    from millstream.commands.progress import ChunkProgress
    from millstream.core.controls import WeightedPrompt, check_prompts, fill_empty
    from millstream.core.events import read_events
    from millstream.engine.engine import stream_config
    from millstream.engine.staggered import refuse_stream_batch
    from millstream.parallel.tiles import choose_grid
    from millstream.session.journal import JournalWriter, refuse_existing
    from millstream.video.reader import VideoReader
    from millstream.video.writer import VideoWriter

    engine_config = resolve(options, stream_batch=options.stream_batch)
    refuse_experimental(engine_config, stream_batch=options.stream_batch)
    spec = find_model(engine_config.model)
    check_or_join(engine_config)
    changes = options.changes()
    config = stream_config(spec.stream, options.schedule, **changes)
    refuse_stream_batch(options.stream_batch, config, engine_config.speed, engine_config.compile_backend)
    choose_grid(config.latent_size, len(engine_config.vae_devices) or 1)
    check_prompts(fill_empty((WeightedPrompt(options.prompt),), spec.default_prompt))
    events = read_events(options.events) if options.events else ()
    if options.journal and not options.overwrite:
        refuse_existing(options.journal)
    with ExitStack() as stack, plain_out_of_memory():
        reader = (
            stack.enter_context(VideoReader(options.video, size=(config.height, config.width)))
            if options.video
            else None
        )
        if reader is not None and "fps" not in changes:
            config = stream_config(config, fps=reader.fps)
        num_frames = _num_frames(options, config, has_input=reader is not None)
        placed = _place(events, config, num_frames)
        writer = stack.enter_context(VideoWriter(options.out, fps=config.fps, overwrite=options.overwrite))
        engine = stack.enter_context(load_engine(engine_config, config))
        session_id = secrets.token_hex(8)
        journal = None
        if options.journal:
            header = engine.journal_header(
                config,
                session_id,
                stream_batch=options.stream_batch,
                video=_describe(options.video),
                num_frames=num_frames,
            )
            journal = stack.enter_context(JournalWriter(options.journal, header, overwrite=options.overwrite))
        session = engine.session(
            options.prompt,
            config=config,
            frames=reader.frames() if reader else None,
            journal=journal,
            session_id=session_id,
        )
        progress = stack.enter_context(ChunkProgress(spec.name, total_frames=num_frames, quiet=options.quiet))
        _say_reading(progress, engine, options.prompt, placed)
        if engine.speed.any:
            progress.say(f"fast: {engine.speed}")
        if options.stream_batch > 1:
            progress.warn(APPROXIMATE.format(options.stream_batch))
        for chunk in _steered(engine, session, placed, options.stream_batch, num_frames):
            frames = chunk.frames[: None if num_frames is None else num_frames - writer.num_frames]
            writer.write(frames)
            progress.add(chunk.timing, len(frames))
            for receipt in chunk.receipts:
                progress.say(f"{receipt.control_id} applied at chunk {receipt.chunk_index}")
            if writer.num_frames == num_frames:
                break


def _steered(
    engine: Engine,
    session: Session,
    placed: list[tuple[int, AnyControl]],
    stream_batch: int,
    num_frames: int | None,
) -> Iterator[Chunk]:
    """The session's chunks, each control handed in when its chunk is next: few wait at a time, however long
    the file."""
    from millstream.engine.staggered import staggered_stream

    waiting = deque(placed)

    def hand_in() -> None:
        while waiting and waiting[0][0] <= session.timeline.chunk_index:
            session.control(waiting.popleft()[1])

    if stream_batch > 1:
        stream = staggered_stream(engine, session, depth=stream_batch, before_plan=hand_in)
    else:
        stream = engine.stream(session, before_plan=hand_in)
    return stream.stream(num_frames=num_frames)


def _say_reading(
    progress: ChunkProgress, engine: Engine, prompt: str, placed: list[tuple[int, AnyControl]]
) -> None:
    """Say which words of all the run's prompts mean nothing to the model, and which it reads as others."""
    from millstream.core.controls import SetPrompt
    from millstream.core.reading import combined

    later = [p.text for _, control in placed if isinstance(control, SetPrompt) for p in control.mix]
    reading = combined(engine.model.text.embedder.read(text) for text in (prompt, *later))
    if reading.understood:
        pairs = (f"{name} as {read}" for name, read in reading.understood)
        progress.say(f"understood by {engine.spec.name}: {', '.join(pairs)}")
    if reading.unknown:
        progress.warn(f"not understood by {engine.spec.name}: {', '.join(reading.unknown)}")


def _num_frames(options: GenerateOptions, config: StreamConfig, *, has_input: bool) -> int | None:
    """How many pixel frames to write; None is as many as the input has."""
    if options.seconds is not None and options.chunks is not None:
        raise ConfigError("give either --seconds or --chunks, not both")
    if options.chunks is not None:
        if options.chunks < 1:
            raise ConfigError(f"--chunks must be at least 1, got {options.chunks}")
        return pixel_frames(0, config.frames_per_chunk * options.chunks)
    if options.seconds is not None:
        if not (math.isfinite(options.seconds) and options.seconds > 0):
            raise ConfigError(f"--seconds must be above 0, got {options.seconds}")
        return max(1, round(options.seconds * config.fps))
    return None if has_input else round(5 * config.fps)


def _place(
    events: tuple[Event, ...], config: StreamConfig, num_frames: int | None
) -> list[tuple[int, AnyControl]]:
    from millstream.core.events import place_events

    seconds = math.inf if num_frames is None else num_frames / config.fps
    return place_events(events, config, seconds=seconds)


def _describe(video: Path | None) -> InputVideo | None:
    from millstream.session.journal import InputVideo

    return None if video is None else InputVideo(path=str(video.resolve()), digest=file_digest(video))
