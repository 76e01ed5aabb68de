"""SRT input, as a container that PyAV reads: the program ffmpeg receives it, because PyAV's own FFmpeg is
built without SRT.

The program calls the address, or with `mode=listener` waits there for a caller; it passes bytes on unread.
Its errors are reported in few words, without the address.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, cast

import av

from millstream.core.errors import VideoError
from millstream.video.reader import open_input
from millstream.video.sender import NO_FFMPEG, ffmpeg_program

MAX_WORDS = 4096
"""Bytes kept of what ffmpeg writes to standard error, the last ones."""
SILENCE = ("", "input/output error", "connection timed out")
"""FFmpeg's words for an address that does not answer."""
WRONG_PASSPHRASE = re.compile(r"BADSECRET|incorrect passphrase", re.IGNORECASE)
"""Words of two versions of libsrt; FFmpeg itself then says the same as where there is no answer."""


@contextmanager
def open_srt(
    url: str, *, options: Mapping[str, str], open_s: float, read_s: float
) -> Iterator[av.container.InputContainer]:
    """Raises VideoError where nobody answers for `open_s`; it ends where nothing comes for `read_s`."""
    program = ffmpeg_program()
    if program is None:
        raise VideoError(NO_FFMPEG)
    patience = (
        "-listen_timeout",
        f"{open_s * 1e6:.0f}",
        "-timeout",
        f"{read_s * 1e6:.0f}",
    )  # ends it, too, if we are killed
    copied = (
        "-f",
        "data",
        "-i",
        url,
        "-map",
        "0",
        "-c",
        "copy",
        "-flush_packets",
        "1",
        "-f",
        "data",
        "pipe:1",
    )
    with subprocess.Popen(
        [program, "-hide_banner", "-loglevel", "error", *patience, *copied],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
    ) as process:  # fmt: skip
        carried = _Carried(process, open_s + read_s)
        try:
            with open_input(carried, format="mpegts", options=dict(options)) as container:
                yield container
        except av.FFmpegError as error:
            if carried.trouble:
                raise VideoError(carried.trouble) from error
            raise
        finally:
            process.kill()


class _Carried:
    """A file for PyAV: blocks until there is something, but not for ever. Nothing may be raised in it, PyAV
    would drop that."""

    def __init__(self, process: subprocess.Popen[bytes], patience_s: float) -> None:
        self.trouble = ""
        """Why there is no more."""
        self._data = cast(IO[bytes], process.stdout)
        self._words = cast(IO[bytes], process.stderr)
        self._patience_s = patience_s
        self._said = b""

    def read(self, count: int) -> bytes:
        while True:
            ready, _, _ = select.select([self._data, self._words], [], [], self._patience_s)
            if self._words in ready and (said := os.read(self._words.fileno(), MAX_WORDS)):
                self._said = (self._said + said)[-MAX_WORDS:]
                continue
            data = os.read(self._data.fileno(), count) if ready else b""
            self.trouble = "" if data else self._reason()
            return data

    def _reason(self) -> str:
        said = self._said.decode(errors="replace").strip()
        if WRONG_PASSPHRASE.search(said):
            return "its passphrase is another one"
        why = said.rpartition(": ")[2].lower()
        return "it does not answer" if why in SILENCE else why
