"""`millstream generate`: a prompt or a video, and a timeline of controls, to a file."""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millstream.commands.engine_from_options import check_or_join, load_engine, resolve
from millstream.commands.memory import plain_out_of_memory
from millstream.commands.progress import ChunkProgress
from millstream.core.config import StreamConfig, pixel_frames
from millstream.core.controls import AnyControl, SetPrompt, WeightedPrompt, check_prompts, fill_empty
from millstream.core.engine_config import EngineOptions
from millstream.core.errors import ConfigError
from millstream.core.events import Event, place_events, read_events
from millstream.core.files import file_digest
from millstream.core.presets import find_model
from millstream.engine.engine import Engine, stream_config
from millstream.engine.staggered import refuse_stream_batch, staggered_stream
from millstream.parallel.tiles import choose_grid
from millstream.session.chunk import Chunk
from millstream.session.journal import InputVideo, JournalWriter, refuse_existing
from millstream.session.session import Session
from millstream.video.reader import VideoReader
from millstream.video.writer import VideoWriter

APPROXIMATE = "approximate: {} chunks under way, each seeing the one before it still noisy; docs/distributed.md has the figures"


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateRequest:
    """The command line, parsed."""

    options: EngineOptions
    prompt: str
    out: Path
    schedule: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of StreamConfig that were given."""
    seconds: float | None = None
    chunks: int | None = None
    events: Path | None = None
    journal: Path | None = None
    video: Path | None = None
    stream_batch: int = 1
    """Chunks of the stream under way at a time."""
    overwrite: bool = False
    quiet: bool = False


def generate(request: GenerateRequest) -> None:
    """Everything that can be refused is refused before a model is loaded; nothing appears unless it is whole."""
    engine_config = resolve(request.options, stream_batch=request.stream_batch)
    spec = find_model(engine_config.model)
    check_or_join(engine_config)
    config = stream_config(spec.stream, request.schedule, **request.changes)
    refuse_stream_batch(request.stream_batch, config, engine_config.speed, engine_config.compile_backend)
    choose_grid(config.latent_size, len(engine_config.vae_devices) or 1)
    check_prompts(fill_empty((WeightedPrompt(request.prompt),), spec.default_prompt))
    events = read_events(request.events) if request.events else ()
    if request.journal and not request.overwrite:
        refuse_existing(request.journal)
    with ExitStack() as stack, plain_out_of_memory():
        reader = stack.enter_context(VideoReader(request.video, size=(config.height, config.width))) if request.video else None
        if reader is not None and "fps" not in request.changes:
            config = stream_config(config, fps=reader.fps)
        num_frames = _num_frames(request, config, has_input=reader is not None)
        placed = _place(events, config, num_frames)
        writer = stack.enter_context(VideoWriter(request.out, fps=config.fps, overwrite=request.overwrite))
        engine = stack.enter_context(load_engine(engine_config, config))
        session_id, journal = secrets.token_hex(8), None
        if request.journal:
            header = engine.journal_header(
                config,
                session_id,
                stream_batch=request.stream_batch,
                video=_describe(request.video),
                num_frames=num_frames,
            )
            journal = stack.enter_context(JournalWriter(request.journal, header, overwrite=request.overwrite))
        session = engine.session(
            request.prompt,
            config=config,
            frames=reader.frames() if reader else None,
            journal=journal,
            session_id=session_id,
        )
        progress = stack.enter_context(ChunkProgress(spec.name, total_frames=num_frames, quiet=request.quiet))
        _say_unknown(progress, engine, request.prompt, placed)
        if engine.speed.any:
            progress.say(f"fast: {engine.speed}")
        if request.stream_batch > 1:
            progress.warn(APPROXIMATE.format(request.stream_batch))
        for chunk in _steered(engine, session, placed, request.stream_batch, num_frames):
            frames = chunk.frames[: None if num_frames is None else num_frames - writer.num_frames]
            writer.write(frames)
            progress.add(chunk.timing, len(frames))
            for receipt in chunk.receipts:
                progress.say(f"{receipt.control_id} applied at chunk {receipt.chunk_index}")
            if writer.num_frames == num_frames:
                break


def _steered(
    engine: Engine, session: Session, placed: list[tuple[int, AnyControl]], stream_batch: int, num_frames: int | None
) -> Iterator[Chunk]:
    """The session's chunks, each control handed in when its chunk is next: few wait at a time, however long the file."""
    waiting = deque(placed)

    def hand_in() -> None:
        while waiting and waiting[0][0] <= session.timeline.chunk_index:
            session.control(waiting.popleft()[1])

    if stream_batch > 1:
        stream = staggered_stream(engine, session, depth=stream_batch, before_plan=hand_in)
    else:
        stream = engine.stream(session, before_plan=hand_in)
    return stream.stream(num_frames=num_frames)


def _say_unknown(progress: ChunkProgress, engine: Engine, prompt: str, placed: list[tuple[int, AnyControl]]) -> None:
    """Which words of all the run's prompts mean nothing to the model."""
    later = [p.text for _, control in placed if isinstance(control, SetPrompt) for p in control.mix]
    unknown = dict.fromkeys(word for text in (prompt, *later) for word in engine.model.text.embedder.unknown(text))
    if unknown:
        progress.warn(f"not understood by {engine.spec.name}: {', '.join(unknown)}")


def _num_frames(request: GenerateRequest, config: StreamConfig, *, has_input: bool) -> int | None:
    """How many pixel frames to write; None is as many as the input has."""
    if request.seconds is not None and request.chunks is not None:
        raise ConfigError("give either --seconds or --chunks, not both")
    if request.chunks is not None:
        if request.chunks < 1:
            raise ConfigError(f"--chunks must be at least 1, got {request.chunks}")
        return pixel_frames(0, config.frames_per_chunk * request.chunks)
    if request.seconds is not None:
        if not (math.isfinite(request.seconds) and request.seconds > 0):
            raise ConfigError(f"--seconds must be above 0, got {request.seconds}")
        return max(1, round(request.seconds * config.fps))
    return None if has_input else round(5 * config.fps)


def _place(events: tuple[Event, ...], config: StreamConfig, num_frames: int | None) -> list[tuple[int, AnyControl]]:
    seconds = math.inf if num_frames is None else num_frames / config.fps
    return place_events(events, config, seconds=seconds)


def _describe(video: Path | None) -> InputVideo | None:
    return None if video is None else InputVideo(path=str(video.resolve()), digest=file_digest(video))
