"""A timeline file: controls with the second or the chunk they belong to, for runs without a person.

    [{"at": 2.5, "type": "prompt", "prompt": "a storm at sea", "mode": "blend", "chunks": 4},
     {"chunk": 9, "type": "cut"},
     {"at": 12, "type": "image", "path": "photo.jpg"}]

A control applies at the first chunk that starts at or after its second. A picture is named by a path, seen from
the file's folder.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from millstream.core.config import ImageEntry, StreamConfig, latent_frames, pixel_frames
from millstream.core.controls import MAX_IMAGE_BYTES, AnyControl, Cut, Pause, Resume, SetImage, SetPrompt
from millstream.core.errors import ControlError, MillstreamError

MAX_EVENTS = 100_000


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A control and when: a second of media time, or a chunk."""

    control: AnyControl
    at: float | None = None
    chunk: int | None = None


def read_events(path: Path) -> tuple[Event, ...]:
    """All events of a file, in its order, each checked on its own."""
    try:
        items = json.loads(path.read_bytes())
    except OSError as error:
        raise ControlError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ControlError(f"{path} is not JSON: {error}") from None
    if not isinstance(items, list) or len(items) > MAX_EVENTS:
        raise ControlError(f"{path} must be a list of at most {MAX_EVENTS} events")
    return tuple(
        _event(item, f"{path}, event {number}", path.parent) for number, item in enumerate(items, start=1)
    )


def chunk_starts(config: StreamConfig, cuts: Mapping[int, int]) -> Iterator[float]:
    """The media time at which each chunk starts, given which chunks begin a new epoch, and with how many latent
    frames of a picture before them."""
    frames = 0
    start_frame = 0
    for chunk in itertools.count():
        yield frames / config.fps
        given = cuts.get(chunk, 0)
        if chunk in cuts:
            start_frame = 0
        frames += pixel_frames(start_frame, given + config.frames_per_chunk)
        start_frame += given + config.frames_per_chunk


def place_events(
    events: tuple[Event, ...],
    config: StreamConfig,
    *,
    seconds: float,
    image_entry: ImageEntry = "before",
) -> list[tuple[int, AnyControl]]:
    """Each control with its chunk, in order of time. `seconds` is the clip's length; nothing may lie beyond
    it. Pictures are fitted already."""
    placed: list[tuple[int, AnyControl]] = []
    waiting = list(events)
    cuts: dict[int, int] = {}
    for chunk, start in enumerate(chunk_starts(config, cuts)):
        due = [event for event in waiting if _is_due(event, chunk, start)]
        waiting = [event for event in waiting if event not in due]
        placed.extend((chunk, event.control) for event in due)
        for event in due:
            if _cuts(event.control):
                given = _given_frames(event.control, config) if image_entry == "before" else 0
                cuts[chunk] = max(given, cuts.get(chunk, 0))
        if not waiting:
            return placed
        if start >= seconds:
            late = waiting[0]
            when = f"second {late.at:g}" if late.at is not None else f"chunk {late.chunk}"
            raise ControlError(
                f"the event at {when} lies after the end of the clip ({seconds:g} s); make the clip longer"
            )
    raise AssertionError("chunks never end")


def _event(item: Any, where: str, folder: Path) -> Event:
    if not isinstance(item, dict):
        raise ControlError(f"{where} must be an object with a type and either at or chunk")
    fields = dict(item)
    if fields.get("type") == "image":
        fields["image"] = _read_picture(fields, where, folder)
    at = fields.pop("at", None)
    chunk = fields.pop("chunk", None)
    if (at is None) == (chunk is None):
        raise ControlError(f"{where} needs either at (seconds) or chunk (a number)")
    try:
        control: AnyControl = msgspec.convert(fields, AnyControl)
        event = Event(
            control=control, at=msgspec.convert(at, float | None), chunk=msgspec.convert(chunk, int | None)
        )
        control.check()
    except (msgspec.MsgspecError, MillstreamError) as error:
        raise ControlError(f"{where}: {error}") from None
    if isinstance(control, (Pause, Resume)):
        raise ControlError(f"{where}: {type(control).__name__.lower()} needs a person; a file cannot wait")
    if (event.chunk is not None and event.chunk < 0) or (
        event.at is not None and not 0 <= event.at < math.inf
    ):
        raise ControlError(f"{where} lies in the past; the first chunk is 0 and the first second is 0")
    return event


def _is_due(event: Event, chunk: int, start: float) -> bool:
    return event.chunk <= chunk if event.chunk is not None else event.at is not None and event.at <= start


def _cuts(control: AnyControl) -> bool:
    return isinstance(control, Cut) or (isinstance(control, SetPrompt | SetImage) and control.mode == "cut")


def _given_frames(control: AnyControl, config: StreamConfig) -> int:
    """Latent frames of a picture that come before its chunk."""
    if not isinstance(control, SetImage) or control.picture is None:
        return 0
    return min(latent_frames(control.picture.num_frames), config.window - config.frames_per_chunk)


def _read_picture(fields: dict[str, Any], where: str, folder: Path) -> bytes:
    """The file that an event names."""
    name = fields.pop("path", None)
    if not isinstance(name, str):
        raise ControlError(f"{where} needs path, the picture's file")
    path = folder / name
    try:
        if path.is_file() and path.stat().st_size > MAX_IMAGE_BYTES:
            raise ControlError(f"{where}: {path} has more than {MAX_IMAGE_BYTES} bytes; make it smaller")
        return path.read_bytes()
    except OSError as error:
        raise ControlError(f"{where}: cannot read {path}: {error.strerror}") from None
