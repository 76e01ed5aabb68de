"""Log lines that programs can read, about sessions that nobody can steer with them."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from millstream.core.controls import WeightedPrompt
from millstream.server.logs import JSONFormatter, PlainFormatter
from millstream.server.outbox import Outbox
from tests.server.fakes import TINY, FakeService, fake_hub, until


def told(caplog: pytest.LogCaptureFixture) -> tuple[str, list[logging.LogRecord]]:
    """A short session's log, and its id."""
    caplog.set_level(logging.DEBUG, logger="millstream")

    async def live() -> str:
        service = FakeService()
        hub = fake_hub(service)
        station = hub.open((WeightedPrompt("sea"),), TINY)
        station.join("raw", Outbox())
        service.picture(station.session_id)
        service.end(station.session_id, "enough")
        await until(lambda: not hub.stations)
        await hub.close()
        return station.session_id

    return asyncio.run(live()), caplog.records


def test_a_session_is_logged_from_live_to_ended_with_its_chunks(caplog: pytest.LogCaptureFixture) -> None:
    session_id, records = told(caplog)
    lines = [json.loads(JSONFormatter().format(record)) for record in records if hasattr(record, "session")]
    assert [line["message"].partition(":")[0] for line in lines] == ["live", "chunk in 5 ms", "ended"]
    assert lines[1]["chunk"] == 0
    assert {line["session"] for line in lines} == {session_id[:8]}
    assert not any(session_id in json.dumps(line) for line in lines), "the whole id would steer it"


def test_an_error_brings_its_trace_and_stays_one_line() -> None:
    try:
        raise ValueError("broken\nin two")
    except ValueError as error:
        record = logging.LogRecord("millstream", logging.ERROR, "", 0, "it %s", ("broke",), (type(error), error, None))
    line = JSONFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "it broke"
    assert "ValueError" in json.loads(line)["trace"]


def test_people_see_the_session_behind_the_words() -> None:
    record = logging.makeLogRecord({"msg": "live", "levelname": "INFO", "session": "abc", "chunk": 3})
    assert PlainFormatter().format(record).endswith("INFO live (session abc, chunk 3)")
