"""The same on Ray: `millstream fleet up`, a stream through its gateway, a server that is killed."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():  # Ray's own, as it is imported
    warnings.simplefilter("ignore")
    pytest.importorskip("ray", reason="needs Ray: pip install 'millstream[fleet]'")
    from millstream.commands.fleet import control
    from millstream.commands.fleet.control import up
    from millstream.fleet import on_ray
    from millstream.fleet.local_fleet import RunningFleet, fleet_up

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


def server_of(fleet: RunningFleet) -> int:
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


def test_a_cluster_that_wants_another_token_is_one_line_that_says_what_to_do() -> None:
    for error in (
        on_ray.ray.exceptions.AuthenticationError(
            "Token authentication is enabled but no authentication token was found"
        ),
        RuntimeError("InvalidAuthToken: the token is wrong\nand more"),
    ):
        said = on_ray.no_cluster("10.0.0.1:6379", error)
        assert "ray get-auth-token --generate" in said
        assert "RAY_AUTH_MODE=token" in said
        assert "\n" not in said


def standing(*events: dict[str, Any]) -> dict[str, Any]:
    pools = {"tiny": {"ready": 2, "starting": 1, "draining": 0, "sessions": 0, "waiting": 0, "promised": 0.0}}
    replicas = [
        {
            "id": "tiny-3fa2c1",
            "state": "ready",
            "url": "http://[2001:db8:1234:5678:9abc:def0:1234:5678]:40123",
        }
    ]
    return {
        "replicas": [each | {"sessions": []} for each in replicas],
        "metrics": {"pools": pools},
        "events": list(events),
    }


def test_a_fleet_that_was_taken_down_elsewhere_ends_the_command_that_brought_it_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a replica that does not come up is named there, once."""
    failed = {
        "at": 1.0,
        "kind": "start failed",
        "words": "tiny was not ready: no weights (all of it: errors.txt)",
    }
    looks = iter([True, True, False, True, False, False, False])
    monkeypatch.setattr(control, "POLL_S", 0.01)
    monkeypatch.setattr(on_ray, "is_up", lambda: next(looks))
    monkeypatch.setattr(on_ray, "ask_gateway", lambda *_: standing(failed))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        control.wait_until_told(control.FleetWatch())
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    said = capsys.readouterr().err.splitlines()
    assert said == [failed["words"], "the fleet was taken down elsewhere"]


def test_scale_says_what_it_did_and_status_cuts_no_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(on_ray, "connect", lambda address: None)
    monkeypatch.setattr(on_ray, "ask_gateway", lambda *_: standing())
    control.scale("tiny", 1, 4, None)
    assert capsys.readouterr().out == "tiny: 1 to 4 replicas from now on; 2 ready, 1 starting, 0 draining\n"
    control.status(None, False)
    assert "http://[2001:db8:1234:5678:9abc:def0:1234:5678]:40123" in capsys.readouterr().out


def test_taking_down_what_has_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise on_ray.RayServeException("Serve has gone")

    monkeypatch.setattr(on_ray.serve, "delete", gone)
    monkeypatch.setattr(on_ray.serve, "shutdown", gone)
    monkeypatch.setattr(on_ray, "_replica_names", list)
    assert on_ray.take_down() == 0
