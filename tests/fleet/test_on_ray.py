"""The same on Ray: `millstream fleet up`, a stream through its gateway, a server that is killed."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():  # Ray's own, as it is imported
    warnings.simplefilter("ignore")
    pytest.importorskip("ray", reason="needs Ray: pip install 'millstream[fleet]'")
    from benchmarks.fleets.running import Fleet, fleet_up
    from millstream.commands.fleet.control import up
    from millstream.fleet import on_ray

from millstream.client.sync_client import connect
from millstream.core.client_messages import Ask
from millstream.core.errors import ConfigError
from tests.fleet.playing import digests

PORT = 8482


@pytest.mark.slow
def test_a_fleet_on_ray_goes_on_when_a_server_is_killed(tmp_path: Path) -> None:
    ask = Ask(prompt="sea", fps=4.0, seed=3)
    with fleet_up(tmp_path, port=PORT) as fleet, connect(fleet.url, format="raw") as client:
        client.start(ask)
        seen = digests(client, 3)
        os.kill(server_of(fleet), signal.SIGKILL)
        seen |= digests(client, 3)
        client.stop()
        with connect(fleet.url, format="raw") as still:
            still.start(ask)
            assert digests(still, 6) == seen


def server_of(fleet: Fleet) -> int:
    (busy,) = [each for each in fleet.ready() if each["sessions"]]
    return int(busy["pid"])


def test_storage_that_cannot_be_written_is_one_line_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "fleet.toml").write_text('storage = "file/states"\n[replicas.tiny]\nmodel = "wan-tiny"\n')
    with pytest.raises(ConfigError, match="choose a folder or address that can be written") as refused:
        up(tmp_path / "fleet.toml", None)
    assert "\n" not in str(refused.value)


def test_a_cluster_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ConfigError, match="no Ray cluster at") as refused:
        on_ray.connect("127.0.0.1:1")
    assert "\n" not in str(refused.value)
