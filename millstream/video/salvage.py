"""Rescue of a file whose writing stopped anywhere: it is cut to the part that is whole. Knows films and
journals, no folders."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

READ_BYTES = 1 << 20


def cut_to_whole_film(path: Path) -> bool:
    """Cut an mp4 that grew by fragments after its last whole one; return whether there is any."""
    with path.open("rb") as file:
        whole = _playable_bytes(file)
    return _cut(path, whole)


def cut_to_whole_lines(path: Path) -> bool:
    """Cut a file of lines after its last whole one; return whether there is any."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            begin = max(0, end - READ_BYTES)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return _cut(path, begin + found + 1)
            end = begin
    return False


def _playable_bytes(file: IO[bytes]) -> int:
    """Up to the last pictures that are all there, once a table of contents is; 0 where one of the two is
    missing.

    A film that was finished has its table after its pictures, one that grows before them and perhaps a second
    one behind.
    """
    end = 0
    seen = set()
    for kind, stop in _boxes(file):
        seen.add(kind)
        if {b"moov", b"mdat"} <= seen and (kind == b"mdat" or not end):
            end = stop
    return end


def _boxes(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """The kind and the end of each part of an mp4 that is there to its end."""
    size = os.fstat(file.fileno()).st_size
    begin = 0
    while begin + 16 <= size:
        file.seek(begin)
        length, kind, long_length = struct.unpack(">I4sQ", file.read(16))
        stop = begin + (long_length if length == 1 else length)
        if not begin + 8 <= stop <= size:
            return
        yield kind, stop
        begin = stop


def _cut(path: Path, num_bytes: int) -> bool:
    if num_bytes:
        size = path.stat().st_size
        assert num_bytes <= size, f"{num_bytes} bytes are whole of a file of {size}"
        os.truncate(path, num_bytes)
    return num_bytes > 0
