"""Videos with their captions: text files beside them, or one list as csv, jsonl or lines
with tabs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from millstream.core.errors import ConfigError

VIDEOS = {".mp4", ".webm", ".mov", ".avi", ".mkv", ".gif", ".mpg", ".mpeg", ".m4v"}
LISTS = ("captions.csv", "captions.jsonl", "metadata.csv", "metadata.jsonl")
"""Looked for in a folder, in this order."""
FILE_COLUMNS = ("file", "file_name", "video", "path", "video_path")
CAPTION_COLUMNS = ("caption", "text", "prompt")
NO_CAPTION = "it has no caption"
NOT_UTF_8 = "its caption is not text in UTF-8; save it as that"
SILENT = {NO_CAPTION, NOT_UTF_8}
"""Why nothing is said of a video."""
HOW = (
    "put a text file with the same name beside each video, or name a list: a csv or jsonl with `file` and "
    "`caption`"
)


class CaptionedVideo(NamedTuple):
    path: Path
    caption: str
    """Empty where nothing is said."""
    why_silent: str = NO_CAPTION
    """There: one of `SILENT`."""


def find_videos(source: Path) -> list[CaptionedVideo]:
    """In a fixed order. At least one has a caption."""
    if source.is_dir():
        listed = next((source / name for name in LISTS if (source / name).exists()), None)
        found = list(_listed(listed)) if listed is not None else list(_beside(source))
    elif source.exists():
        found = list(_listed(source))
    else:
        raise ConfigError(f"{source} is not there; name a folder of videos, or a list of them")
    if not found:
        raise ConfigError(f"{source} names no video ({', '.join(sorted(VIDEOS))})")
    if not any(video.caption for video in found):
        why = next(
            (f" ({each.path.name}: {each.why_silent})" for each in found if each.why_silent != NO_CAPTION), ""
        )
        raise ConfigError(f"no video of {source} has a caption{why}; {HOW}")
    return found


def _beside(folder: Path) -> Iterator[CaptionedVideo]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in VIDEOS and path.is_file():
            said = path.with_suffix(".txt")
            try:
                yield CaptionedVideo(
                    path, _one_line(said.read_text(encoding="utf-8-sig")) if said.is_file() else ""
                )
            except (OSError, UnicodeDecodeError):
                yield CaptionedVideo(path, "", NOT_UTF_8)


def _listed(path: Path) -> Iterator[CaptionedVideo]:
    readers = {".csv": _csv_rows, ".jsonl": _json_rows, ".txt": _tab_rows, ".tsv": _tab_rows}
    if path.suffix.lower() not in readers:
        raise ConfigError(f"{path} must end in {', '.join(readers)}; or name a folder of videos")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no list of videos: {error}") from None
    for number, (name, caption) in readers[path.suffix.lower()](path, text):
        if not name:
            raise ConfigError(f"{path}, line {number}: no file is named")
        yield CaptionedVideo(path.parent / name, _one_line(caption))


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, tuple[str, str]]]:
    reader = csv.DictReader(text.splitlines())
    columns = reader.fieldnames or ()
    file, caption = (_column(path, columns, known) for known in (FILE_COLUMNS, CAPTION_COLUMNS))
    for row in reader:
        yield reader.line_num, (row[file] or "", row[caption] or "")


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, tuple[str, str]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            row = None
        if not isinstance(row, dict):
            raise ConfigError(f"{path}, line {number}: not a JSON object")
        caption = next(
            (row[name] for name in CAPTION_COLUMNS if row.get(name)), ""
        )  # one that lacks it is left out alone
        yield number, (str(row[_column(path, row, FILE_COLUMNS)] or ""), str(caption))


def _tab_rows(path: Path, text: str) -> Iterator[tuple[int, tuple[str, str]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        name, _, caption = line.partition("\t")
        if name.strip():
            yield number, (name.strip(), caption)


def _column(path: Path, columns: object, known: tuple[str, ...]) -> str:
    assert isinstance(columns, (list, tuple, dict)), f"columns are {type(columns)}"
    for name in known:
        if name in columns:
            return name
    raise ConfigError(
        f"{path} has no column {known[0]} (nor {', '.join(known[1:])}); it has {', '.join(columns) or 'none'}"
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
