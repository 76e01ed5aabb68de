"""`millstream serve` as people run it: its own process, a port of its own, ended when it is no longer
needed."""

from __future__ import annotations

import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

READY_WITHIN_S = 60.0
HERE = (sys.executable, "-m", "millstream")
"""The program of this checkout."""


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """`millstream serve` as people run it; its address once it is ready."""
    with server_process(*options) as (_, url):
        yield url


@contextmanager
def server_process(
    *options: str, program: Sequence[str] = HERE, trusts: ssl.SSLContext | None = None, **settings: Any
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The same with the process itself, for those who do something to it; `trusts` is whose certificate it
    shows, `settings` are Popen's."""
    command = [*program, "serve", "--port", "0", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **settings
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://" if trusts is None else "https://"), (
                f"the server said {url!r} and exited with {process.poll()}"
            )
            wait_until_ready(url, trusts)
            yield process, url
        finally:
            process.terminate()
            process.wait(20)


def wait_until_ready(url: str, trusts: ssl.SSLContext | None = None) -> None:
    give_up = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up:
        try:
            with urlopen(f"{url}/readyz", context=trusts):
                return
        except URLError:
            time.sleep(0.1)
    raise AssertionError(f"{url} was not ready within {READY_WITHIN_S:g} s")
