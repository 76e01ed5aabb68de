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
from millstream.core.config import ModelSpec, StreamConfig, latent_frames, pixel_frames
from millstream.core.errors import ConfigError, VideoError
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
    from millstream.video.pictures import Fit, FittedPicture

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
    image: Annotated[Path | None, typer.Option(help="A picture to begin from.", show_default=False)] = None
    extend: Annotated[Path | None, typer.Option(help="A clip to go on from its end.", show_default=False)] = (
        None
    )
    fit: Annotated[str, typer.Option(help="With --image or --extend: crop, or pad with borders.")] = "crop"
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
    "at" is in seconds; "chunk": 3 in its place names a chunk.
    Types: prompt (mode cut, recompute, keep or blend), image (path, mode cut or blend), actions (keys, look),
    cut, steps, seed, noise_scale, window, kv_bias, stop.

    [bold]Begin from a picture[/]: --image photo.jpg, or --extend clip.mp4 to go on where a clip ends.

    [bold]Repeat it[/]: --journal run.jsonl, then millstream replay run.jsonl --check
    """
    if options.video is None and (options.noise_scale is not None or options.motion_gain is not None):
        raise ConfigError("--noise-scale and --motion-gain act on an input video; give one with --input")
    if sum(path is not None for path in (options.image, options.extend, options.video)) > 1:
        raise ConfigError("give one of --image, --extend and --input: a stream begins from one thing")
    if options.fit == "pad" and options.image is None and options.extend is None:
        raise ConfigError("--fit says how --image or --extend comes to the stream's shape; give one of them")
    if options.fit not in ("crop", "pad"):
        raise ConfigError(f"--fit is crop or pad, got {options.fit!r}")
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
    from millstream.core.controls import SetImage, WeightedPrompt, check_prompts, fill_empty
    from millstream.core.events import Event, read_events
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
        begin = _begin(options, config)
        if begin is not None and begin.fps is not None and "fps" not in changes:
            config = stream_config(config, fps=begin.fps)
        events = _with_pictures(options.events, events, config)
        if begin is not None:
            events = (Event(control=SetImage(picture=begin.picture), chunk=0), *events)
        before = 0
        if begin is not None and spec.conditions.image_entry == "before":
            before = latent_frames(begin.picture.num_frames)
        num_frames = _num_frames(options, config, has_input=reader is not None, before=before)
        placed = _place(events, config, num_frames, spec)
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
        if begin is not None and begin.note:
            progress.say(f"the picture: {begin.note}")
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


def _begin(options: GenerateOptions, config: StreamConfig) -> FittedPicture | None:
    """Frames that the stream begins from, if it does."""
    from millstream.video.pictures import fit_clip, fit_picture

    fit: Fit = "pad" if options.fit == "pad" else "crop"
    size = dict(height=config.height, width=config.width)
    if options.extend is not None:
        return fit_clip(options.extend, num_frames=config.begin_frames, fit=fit, **size)
    if options.image is None:
        return None
    try:
        return fit_picture(_read_image(options.image), fit=fit, **size)
    except VideoError as error:
        raise VideoError(f"--image {options.image}: {error}") from None


def _read_image(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise VideoError(f"cannot be read: {error.strerror}; check the path") from None


def _with_pictures(path: Path | None, events: tuple[Event, ...], config: StreamConfig) -> tuple[Event, ...]:
    """Pictures of a timeline's file come to the stream's size."""
    import msgspec

    from millstream.core.controls import SetImage
    from millstream.video.pictures import fit_file

    fitted = []
    for number, event in enumerate(events, start=1):
        control = event.control
        if isinstance(control, SetImage) and control.picture is None:
            try:
                found = fit_file(
                    control.image,
                    height=config.height,
                    width=config.width,
                    num_frames=config.begin_frames,
                    fit=control.fit,
                )
            except VideoError as error:
                raise VideoError(f"{path}, event {number}: {error}") from None
            control = msgspec.structs.replace(control, image=b"", picture=found.picture)
        fitted.append(msgspec.structs.replace(event, control=control))
    return tuple(fitted)


def _num_frames(
    options: GenerateOptions, config: StreamConfig, *, has_input: bool, before: int
) -> int | None:
    """Return the number of pixel frames to write; None is as many as the input has. `before` are latent frames of a
    picture, which are shown first."""
    if options.seconds is not None and options.chunks is not None:
        raise ConfigError("give either --seconds or --chunks, not both")
    if options.chunks is not None:
        if options.chunks < 1:
            raise ConfigError(f"--chunks must be at least 1, got {options.chunks}")
        return pixel_frames(0, before + config.frames_per_chunk * options.chunks)
    if options.seconds is not None:
        if not (math.isfinite(options.seconds) and options.seconds > 0):
            raise ConfigError(f"--seconds must be above 0, got {options.seconds}")
        return max(1, round(options.seconds * config.fps))
    return None if has_input else round(5 * config.fps)


def _place(
    events: tuple[Event, ...], config: StreamConfig, num_frames: int | None, spec: ModelSpec
) -> list[tuple[int, AnyControl]]:
    from millstream.core.events import place_events

    seconds = math.inf if num_frames is None else num_frames / config.fps
    return place_events(events, config, seconds=seconds, image_entry=spec.conditions.image_entry)


def _describe(video: Path | None) -> InputVideo | None:
    from millstream.session.journal import InputVideo

    return None if video is None else InputVideo(path=str(video.resolve()), digest=file_digest(video))
