"""What a replica's process is started with."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream.fleet.config import ReplicaTable
from millstream.fleet.replica_server import ReplicaServer, ReplicaStart, leave_words, words_place


def a_start(**serve: Any) -> ReplicaStart:
    table = ReplicaTable(model="brook", topology="local", fps=8.0, serve=serve)
    return ReplicaStart(
        pool="tiny", table=table, secret=bytes(32), storage="kept", keep=3, host="", version="2", keys={}
    )


def test_what_a_pool_says_of_its_servers_is_spelled_as_on_the_command_line() -> None:
    words = a_start(allow_output=["a", "b"], insecure=True, look_ahead=False).command(
        "10.0.0.1", Path("data")
    )
    assert words[1:4] == ["-m", "millstream", "serve"]
    assert " ".join(words[4:]) == (
        "--host 10.0.0.1 --port 0 --model brook --topology local --keep 3 --grace 10.0 --data data --fps 8.0 "
        "--allow-output a --allow-output b --insecure"
    )


def test_a_replica_is_waited_for_as_long_as_its_server_may_take() -> None:
    assert a_start().patience_s == 15.0
    assert a_start(grace=60).patience_s == 65.0


def a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> ReplicaServer:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(ReplicaStart, "command", lambda start, host, data: [sys.executable, "-c", program])
    return ReplicaServer(a_start(), lambda: "127.0.0.1")


@pytest.mark.slow
def test_a_replica_that_was_stopped_leaves_nothing_on_its_node_and_neither_does_one_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = a_server(tmp_path, monkeypatch, "import time; time.sleep(600)")
    (home,) = tmp_path.iterdir()
    killed = home / ".millstream-0123456789abcdef.partial"
    (killed / "journals").mkdir(parents=True)  # of a replica that has no process any more
    assert len(list(home.iterdir())) == 2
    server.stop()
    other = a_server(tmp_path, monkeypatch, "import time; time.sleep(600)")
    other.stop()
    assert list(home.iterdir()) == []


@pytest.mark.slow
def test_a_replica_that_does_not_come_up_says_what_its_server_said_and_where_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import sys, time; print('cannot read weights', file=sys.stderr, flush=True); time.sleep(600)"
    server = a_server(tmp_path, monkeypatch, program)
    give_up = time.monotonic() + 60
    while "cannot read weights" not in server.last_words() and time.monotonic() < give_up:
        time.sleep(0.05)
    assert "cannot read weights (all of it: " in server.last_words()
    assert "errors.txt" in server.last_words()
    server.stop()


def test_why_a_server_did_not_come_up_is_left_where_the_gateway_finds_it(tmp_path: Path) -> None:
    start = replace(a_start(), storage=str(tmp_path / "states"))
    leave_words(start, "cannot read weights")
    assert (tmp_path / "states" / words_place("tiny")).read_text() == "cannot read weights"
