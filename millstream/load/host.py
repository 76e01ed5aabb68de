"""The server as a process: started for a run, watched from outside, stopped after it.

Memory and threads are read from `/proc` where the server is ours; everything else is what it says in its
`/metrics`.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from millstream.core.errors import LoadError

READY_S = 300.0
"""Loading and warming up a model."""
STOP_S = 20.0
SAMPLE_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class HostReading:
    resident_bytes: int
    threads: int | None
    tasks: int | None
    """On its event loop. None, as for threads, where the server does not say."""
    device_bytes: int | None = None
    """Allocated on a GPU; 0 on a CPU, None where the server does not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    start: HostReading
    peak_bytes: int
    end: HostReading

    @property
    def growth(self) -> float:
        return self.end.resident_bytes / self.start.resident_bytes - 1

    @property
    def device_growth(self) -> float:
        """0 where nothing is on a device."""
        return (self.end.device_bytes or 0) / self.start.device_bytes - 1 if self.start.device_bytes else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    url: str
    pid: int | None
    """None for a server that was started elsewhere."""

    def read(self) -> HostReading | None:
        """Now; None where the server does not say, or is gone."""
        told = metrics(self.url)
        own = None if self.pid is None else _read_process(self.pid)
        resident, threads = own or (
            _whole(told, "process_resident_memory_bytes"),
            _whole(told, "millstream_threads"),
        )
        if resident is None:
            return None
        return HostReading(
            resident_bytes=resident,
            threads=threads,
            tasks=_whole(told, "millstream_tasks"),
            device_bytes=_whole(told, "millstream_device_memory_bytes"),
        )


class Watch:
    """Samples a server's memory while a run goes on. Keeps the first, the largest and the last, however
    long."""

    def __init__(self, read: Callable[[], HostReading | None]) -> None:
        self._read = read
        self._start: HostReading | None = None
        self._peak_bytes = 0
        self._end: HostReading | None = None

    async def sample(self) -> None:
        reading = await asyncio.to_thread(self._read)
        if reading is None:
            return
        self._start = self._start or reading
        self._end = reading
        self._peak_bytes = max(self._peak_bytes, reading.resident_bytes)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(SAMPLE_S)

    def usage(self) -> Usage | None:
        if self._start is None or self._end is None:
            return None
        assert self._peak_bytes >= self._end.resident_bytes, (
            f"a peak of {self._peak_bytes} bytes below its end"
        )
        return Usage(start=self._start, peak_bytes=self._peak_bytes, end=self._end)


@asynccontextmanager
async def serve(options: Sequence[str]) -> AsyncIterator[Host]:
    """`millstream serve` with these options, on a free port of this machine, for as long as the block
    lasts."""
    with tempfile.TemporaryDirectory(prefix="millstream-load-") as folder:
        log = Path(folder) / "log"
        command = [
            sys.executable,
            "-m",
            "millstream",
            "serve",
            "--port",
            "0",
            "--data",
            f"{folder}/data",
            *options,
        ]
        with log.open("wb") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield Host(url=await _wait_until_ready(process, log), pid=process.pid)
        finally:
            await asyncio.to_thread(_stop, process)


async def is_ready(url: str) -> bool:
    return await asyncio.to_thread(_get, url, "/readyz") is not None


async def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address it prints, once it has warmed up."""
    patience = time.monotonic() + READY_S
    while True:
        lines = log.read_text(errors="replace").splitlines()
        url = next((f"ws{line.removeprefix('http')}" for line in lines if line.startswith("http://")), None)
        if url is not None and await is_ready(url):
            return url
        if process.poll() is not None:
            raise LoadError(f"the server did not start: {lines[-1] if lines else 'it said nothing'}")
        if time.monotonic() > patience:
            raise LoadError(f"the server was not ready within {READY_S:g} s; try a smaller model")
        await asyncio.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _read_process(pid: int) -> tuple[int, int] | None:
    """Resident bytes and threads; None when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if "VmRSS" not in fields:
        return None  # it has ended and its exit code was not asked for yet
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["Threads"])


def _whole(samples: dict[str, float], name: str) -> int | None:
    return int(samples[name]) if name in samples else None


def metrics(url: str) -> dict[str, float]:
    """The server's Prometheus samples by name, labels included; empty when it does not answer."""
    lines = (_get(url, "/metrics") or "").splitlines()
    pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def _get(url: str, path: str) -> str | None:
    """The page's text; None when it is not there or not yet."""
    parts = urlsplit(url)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urlunsplit(("http", parts.netloc, path, "", "")), timeout=5) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError, TimeoutError):
        return None
