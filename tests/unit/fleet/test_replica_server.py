"""What a replica's process is started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.fleet.config import ReplicaTable
from millstream.fleet.replica_server import ReplicaStart


def a_start(**serve: Any) -> ReplicaStart:
    table = ReplicaTable(model="brook", topology="local", fps=8.0, serve=serve)
    return ReplicaStart(pool="tiny", table=table, secret=bytes(32), storage="kept", keep=3, host="", version="2", keys={})


def test_what_a_pool_says_of_its_servers_is_spelled_as_on_the_command_line() -> None:
    words = a_start(allow_output=["a", "b"], insecure=True, look_ahead=False).command("10.0.0.1", Path("data"))
    assert words[1:4] == ["-m", "millstream", "serve"]
    assert " ".join(words[4:]) == (
        "--host 10.0.0.1 --port 0 --model brook --topology local --keep 3 --grace 10.0 --data data --fps 8.0 "
        "--allow-output a --allow-output b --insecure"
    )


def test_a_replica_is_waited_for_as_long_as_its_server_may_take() -> None:
    assert a_start().patience_s == 15.0
    assert a_start(grace=60).patience_s == 65.0
