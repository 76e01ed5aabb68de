"""What lies in a server's `--data` folder, judged from outside: a file that has its name is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import av
from safetensors import SafetensorError, safe_open

from millstream.core.errors import JournalError
from millstream.core.files import drafts
from millstream.engine.snapshot import read_header
from millstream.server.sessions.file_store import SUFFIXES
from millstream.server.sessions.keeper import file_name
from millstream.session.journal import read_journal


def not_whole(data: Path) -> list[str]:
    """Files that have a name and are not what it says, each with the reason."""
    return [
        f"{path.parent.name}/{path.name}: {wrong}" for path in files(data) if (wrong := what_is_wrong(path))
    ]


def files(data: Path) -> Iterator[Path]:
    for kind in SUFFIXES:
        yield from (path for path in sorted((data / kind).iterdir()) if path.is_file())


def num_drafts(data: Path) -> int:
    return sum(len(list(drafts(data / kind))) for kind in SUFFIXES)


def kept_file(data: Path, session: str) -> Path:
    """Where a session's state is kept."""
    return data / "sessions" / f"{file_name(session)}{SUFFIXES['sessions']}"


def kept_before(path: Path) -> int:
    """The chunk that such a file goes on with; -1 while there is none."""
    return read_header(path).timeline.chunk_index if path.is_file() else -1


def what_is_wrong(path: Path) -> str:
    """Empty where nothing is."""
    try:
        return CHECKS[path.suffix](path)
    except KeyError:
        return "nobody's"
    except (av.FFmpegError, JournalError, OSError, SafetensorError) as error:
        return str(error)


def film_frames(path: Path) -> int:
    with av.open(str(path)) as film:
        return sum(1 for _ in film.decode(video=0))


def _film(path: Path) -> str:
    return "" if film_frames(path) else "no picture"


def _journal(path: Path) -> str:
    return "its last line is cut short" if read_journal(path).cut_short else ""


def _snapshot(path: Path) -> str:
    with safe_open(str(path), framework="pt") as file:
        names = list(file.keys())
        for name in names:
            file.get_tensor(name)
    return "" if names else "no tensors"


CHECKS: dict[str, Callable[[Path], str]] = {".mp4": _film, ".jsonl": _journal, ".safetensors": _snapshot}
