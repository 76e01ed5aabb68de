"""`millstream serve` as a process: says where it is, is ready when it is warm, stops when told."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from millstream.commands.main import app
from tests.server.serving import START, wait_until

PATIENCE_S = 60.0
TINY = (
    "--model",
    "wan-tiny",
    "--weights",
    "random",
    "--device",
    "cpu",
    "--dtype",
    "float32",
    "--threads",
    "1",
)


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "millstream", "serve", *options]


@contextmanager
def process(data: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """One that listens, and its address."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = command(*TINY, "--port", "0", "--data", str(data), *options)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        try:
            assert running.stdout is not None
            address = running.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), running.communicate(timeout=5)
            yield running, address
        finally:
            if running.poll() is None:
                running.kill()


def is_ready(address: str) -> bool:
    try:
        return httpx2.get(f"{address}/readyz").status_code == 200
    except httpx2.TransportError:
        return False


def test_it_streams_and_stops_when_told_with_people_in_it(tmp_path: Path) -> None:
    """By either signal; two processes side by side, because most of it is loading."""
    with ThreadPoolExecutor(2) as both:
        told = [
            both.submit(stream_and_stop, tmp_path / sent.name, sent, code)
            for sent, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130))
        ]
    for each in told:
        each.result()


def stream_and_stop(data: Path, sent: signal.Signals, code: int) -> None:
    with process(data, "--log-json") as (running, address):
        wait_until(lambda: is_ready(address), "it is ready")
        with connect(address.replace("http", "ws") + "/v1/stream", max_size=None) as client:
            assert json.loads(client.recv(PATIENCE_S))["type"] == "hello"
            client.send(json.dumps(START | {"fps": 2.0}))  # so slow that any machine can promise it
            while isinstance(client.recv(PATIENCE_S), str):
                pass
            running.send_signal(sent)
            last = ""
            with suppress(ConnectionClosed):
                while True:
                    said = client.recv(PATIENCE_S)
                    last = said if isinstance(said, str) else last
            assert json.loads(last)["type"] == "ended"
            assert client.close_code == 1000
            _, errors = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == code, errors
    lines = [json.loads(line) for line in errors.splitlines() if line.startswith("{")]
    assert any(line["message"] == "live" and line["session"] for line in lines), errors
    assert "Traceback" not in errors
    assert list((data / "journals").iterdir()), "the session's journal is there"


def refusal(*options: str, **environment: str) -> str:
    done = CliRunner().invoke(app, ["serve", *options], env=environment)
    assert done.exit_code == 2, done.output
    (line,) = done.output.strip().splitlines()
    return line


def test_memory_that_holds_no_session_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.server.logs.set_up_logging", lambda **_: None)
    said = refusal(*TINY, "--port", "0", "--data", str(tmp_path), "--memory", "0.000001")
    assert "--memory 1e-06 GiB holds no session, which takes 0." in said


def test_what_cannot_be_is_said_in_one_line_before_anything_is_loaded(tmp_path: Path) -> None:
    assert "--api-key" in refusal(*TINY, "--host", "0.0.0.0", "--port", "0")
    assert "API key" in refusal(*TINY, "--port", "0", MILLSTREAM_API_KEY="short")
    assert "not registered" in refusal("--model", "nonsense", "--port", "0")
    (tmp_path / "file").write_text("")
    assert "--data" in refusal(*TINY, "--port", "0", "--data", str(tmp_path / "file"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port}" in refusal(
            *TINY, "--port", port, "--data", str(tmp_path / "data")
        )
