"""Log lines that programs can read, about sessions that nobody can steer with them."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

import pytest

from millstream.core.controls import Cut, WeightedPrompt
from millstream.engine.engine import Engine
from millstream.server.logs import FewRepeats, JSONFormatter, PlainFormatter
from millstream.server.sessions.outbox import Outbox
from millstream.serving.admission_types import AdmissionConfig
from millstream.serving.notices import Ended
from millstream.serving.service import Service
from millstream.serving.session_entry import OpenRequest
from tests.server.fakes import TINY, FakeService, fake_hub, until


def told(caplog: pytest.LogCaptureFixture) -> tuple[str, list[logging.LogRecord]]:
    """A short session's log, and its id."""
    caplog.set_level(logging.DEBUG, logger="millstream")

    async def live() -> str:
        service = FakeService()
        hub = fake_hub(service)
        live_session = hub.open((WeightedPrompt("sea"),), TINY)
        live_session.join("raw", Outbox())
        service.picture(live_session.session_id)
        service.end(live_session.session_id, "enough")
        await until(lambda: not hub.live_sessions)
        await hub.close()
        return live_session.session_id

    return asyncio.run(live()), caplog.records


def test_a_session_is_logged_from_live_to_ended_with_its_chunks(caplog: pytest.LogCaptureFixture) -> None:
    session_id, records = told(caplog)
    lines = [json.loads(JSONFormatter().format(record)) for record in records if hasattr(record, "session")]
    assert [line["message"].partition(":")[0] for line in lines] == ["live", "chunk in 5 ms", "ended"]
    assert lines[1]["chunk"] == 0
    assert {line["session"] for line in lines} == {session_id[:8]}
    assert not any(session_id in json.dumps(line) for line in lines), "the whole id would steer it"


def test_a_control_is_logged_with_the_chunk_it_shows_in_and_a_late_chunk_with_how_late(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="millstream")

    async def live() -> None:
        service = FakeService()
        hub = fake_hub(service)
        live_session = hub.open((WeightedPrompt("sea"),), TINY)
        await live_session.control(Cut(id="mine\nERROR forged"))
        service.picture(live_session.session_id, late_s=0.5)
        service.end(live_session.session_id, "enough")
        await until(lambda: not hub.live_sessions)
        await hub.close()

    asyncio.run(live())
    lines = [
        PlainFormatter().format(record).partition("INFO ")[2]
        for record in caplog.records
        if hasattr(record, "session")
    ]
    label = caplog.records[0].session  # type: ignore[attr-defined]
    assert f"applied 'mine\\nERROR forged' (session {label}, chunk 0)" in lines
    assert f"chunk in 5 ms, 0.50 s late (session {label}, chunk 0)" in lines
    assert not any("\n" in line for line in lines)


def test_a_session_that_fails_is_logged_with_its_chunk_and_no_name_to_steer_it_by(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine("wan-tiny", weights="random", device="cpu", dtype="float32")
    service = Service(engine, admission=AdmissionConfig(memory_bytes=1), session_bytes=lambda config: 1)
    name = "a-name-that-steers-it"
    ended = threading.Event()
    request = OpenRequest(session_id=name, prompts=(WeightedPrompt("sea"),), config=TINY)
    service.open(request, lambda notice: ended.set() if isinstance(notice, Ended) else None)
    service.watch(name)
    service.table.entries[name].session.prepare = None  # type: ignore[union-attr, assignment]
    service.start()
    assert ended.wait(30)
    service.close()
    (line,) = (
        json.loads(JSONFormatter().format(record)) for record in caplog.records if record.levelname == "ERROR"
    )
    assert (line["session"], line["chunk"], line["message"]) == (name[:8], 0, "the session has failed")
    assert name not in json.dumps(line)


def test_an_error_brings_its_trace_and_stays_one_line() -> None:
    try:
        raise ValueError("broken\nin two")
    except ValueError as error:
        record = logging.LogRecord(
            "millstream", logging.ERROR, "", 0, "it %s", ("broke",), (type(error), error, None)
        )
    line = JSONFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "it broke"
    assert "ValueError" in json.loads(line)["trace"]


def test_people_see_the_session_behind_the_words() -> None:
    record = logging.makeLogRecord({"msg": "live", "levelname": "INFO", "session": "abc", "chunk": 3})
    assert PlainFormatter().format(record).endswith("INFO live (session abc, chunk 3)")


def test_what_a_client_can_repeat_is_said_once_a_minute_with_how_often() -> None:
    now = [0.0]
    said = []
    few = FewRepeats(clock=lambda: now[0])

    def warn(line: int, number: int, level: int = logging.WARNING, wrong: Any = None) -> None:
        record = logging.LogRecord("any", level, "file.py", line, "%d refused", (number,), wrong)
        if few.filter(record):
            said.append(record.getMessage())

    for number in range(1000):
        warn(1, number)
    warn(2, 5)
    warn(1, 6, logging.ERROR)
    warn(1, 7, wrong=(ValueError, ValueError(), None))
    assert said == ["0 refused", "5 refused", "6 refused", "7 refused"], (
        "another line, an error and a traceback pass"
    )
    now[0] = 60.0
    warn(1, 8)
    warn(1, 9)
    assert said[4:] == ["8 refused (999 more since this was last said)"]
