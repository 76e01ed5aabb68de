"""`millstream serve` over a mesh that loses ranks: what /readyz says meanwhile, that a recording goes on, and
that it stops when it is told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from websockets.sync.client import connect

from tests.dist.meshes import ranks_of, seconds_until_gone
from tests.server.native.test_kept import frames_of
from tests.server.serve_process import wait_until_ready
from tests.server.serving import Client

OPTIONS = [
    "--model",
    "wan-tiny",
    "--weights",
    "random:3",
    "--device",
    "cpu",
    "--dtype",
    "float32",
    "--topology",
    "front+tp2",
]
PATIENCE_S = 30.0


@contextmanager
def serving(data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "millstream", "serve", "--port", "0", "--data", str(data), *OPTIONS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            wait_until_ready(url)
            yield process, url
        finally:
            process.kill()


def readiness(url: str) -> tuple[int, str]:
    try:
        with urlopen(f"{url}/readyz") as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def until(url: str, status: int) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while (found := readiness(url))[0] != status:
        assert time.monotonic() < deadline, f"/readyz says {found} and never {status}"
    return found[1]


def recorded(url: str, then: Callable[[], None]) -> int:
    """Frames of a recording, in the middle of which something happens."""
    with connect(
        f"{url.replace('http', 'ws')}/v1/stream", max_size=None, open_timeout=PATIENCE_S
    ) as connection:
        client = Client(connection)
        client.hear("hello")
        client.start(fps=4.0, formats=["raw"])  # so slow that any machine can promise it
        client.say({"type": "record", "on": True})
        film = client.hear("recording", on=True)["url"]
        first = client.hear("chunk")["index"]
        then()
        client.hear("chunk", index=first + 3)
        client.say({"type": "record", "on": False})
        client.hear("recording", on=False)
    with urlopen(url + film) as answer:
        return frames_of(answer.read())


def test_a_server_is_not_ready_while_its_mesh_is_brought_back_goes_on_recording_and_stops_even_then(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as (process, url):
        first = ranks_of(process.pid)
        os.kill(first[-1], signal.SIGKILL)
        said = until(url, 503)
        assert said == "not ready: the mesh is being brought back: rank 2 was killed by SIGKILL"
        assert until(url, 200) == "ready"
        second = ranks_of(process.pid)
        assert len(second) == 2
        assert not set(first) & set(second)
        frames = recorded(url, lambda: os.kill(second[-1], signal.SIGKILL))
        assert frames >= 3 * 12, "those of chunks after the loss, too"
        third = ranks_of(process.pid)
        os.kill(third[0], signal.SIGKILL)
        until(url, 503)
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
        seconds_until_gone([*third, *ranks_of(process.pid)], PATIENCE_S)
