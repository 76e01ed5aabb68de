"""A fleet whose replicas do not come: said in one line, and tried again; nobody waits in vain."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.core.errors import ConfigError, DeviceError, Overloaded, UnknownSession
from millstream.fleet.config import read_fleet
from millstream.fleet.fleet import LiveFleet
from tests.fleet.playing import Threads

TOML = """
[replicas.tiny]
model = "wan-tiny"
minimum = 1
ready-within = 0.2
"""


class NoRoom(Threads):
    async def start(self, pool: str, version: str) -> None:
        raise DeviceError(f"no node has room for a replica of {pool}")


async def after_a_while(fleet: LiveFleet, seconds: float) -> None:
    running = asyncio.ensure_future(fleet.run())
    await asyncio.sleep(seconds)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await fleet.close()


def fleet_of(tmp_path: Path, replicas: Threads) -> LiveFleet:
    (tmp_path / "fleet.toml").write_text(TOML)
    return LiveFleet(read_fleet(tmp_path / "fleet.toml"), replicas, bytes(32))


@pytest.mark.parametrize(
    ("replicas", "says"), [(Threads(), "was not ready within 0.2 s"), (NoRoom(), "no node has room for a replica of tiny")]
)
def test_a_replica_that_never_becomes_ready_is_one_line(tmp_path: Path, replicas: Threads, says: str) -> None:
    fleet = fleet_of(tmp_path, replicas)
    asyncio.run(after_a_while(fleet, 1.2))
    (failed, *_) = [event for event in fleet.events if event.kind == "start failed"]
    assert says in failed.words
    assert "\n" not in failed.words


def test_without_replicas_whoever_asks_is_told_so(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, Threads())
    with pytest.raises(Overloaded, match="no replica is ready"):
        asyncio.run(fleet.price({"prompt": "sea"}, "s", key=""))
    with pytest.raises(UnknownSession, match="there is no replica"):
        fleet.drain("nobody")


def test_replicas_that_are_not_in_the_file_are_one_line(tmp_path: Path) -> None:
    fleet = fleet_of(tmp_path, Threads())
    with pytest.raises(ConfigError, match="there are no replicas called large; known: tiny"):
        fleet.deploy("large", "2")
    with pytest.raises(ConfigError, match="there are no replicas called large; known: tiny"):
        fleet.resize("large", 1, 2)
    with pytest.raises(ConfigError, match="need 0 or more replicas at least and 1 or more at most"):
        fleet.resize("tiny", 2, 1)
    with pytest.raises(UnknownSession, match="'abc' is not one session that tiny-a has room for now"):
        fleet.move("abc", "tiny-a")
