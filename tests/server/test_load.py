"""The load harness over real sockets: against a small server that behaves or misbehaves, and against the real
one."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millstream.commands.bench.load import WORDS
from millstream.commands.main import app
from millstream.core.errors import LoadError
from millstream.load.gate import missed
from millstream.load.host import metrics
from millstream.load.record import Samples
from millstream.load.run import LoadRequest, LoadResult, run_load
from millstream.load.saturate import PRECISION, Overhead, count_admitted, find_rate, measure_overhead
from tests.server.serving import serving
from tests.server.small_server import SmallServer, small_server

FPS = 60.0
"""A chunk plays a fifth of a second, so that a short run has many."""


@dataclass(frozen=True)
class Run:
    result: LoadResult
    server: SmallServer


SCENARIOS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "behaves": ({}, dict(sessions=3, seconds=4.0)),
    "rude people": ({}, dict(sessions=4, seconds=6.0, script="rude")),
    "full": ({"places": 2}, dict(sessions=3)),
    "stalls": ({"stall_at": 5, "stall_s": 0.5}, {}),
    "forgets controls": ({"forgetful": True}, dict(seconds=3.0)),
    "skips a chunk": ({"skipped": 4}, dict(script="calm")),
    "short visits": ({}, dict(connects=12)),
}
"""How the small server is, and who comes to it."""


async def load(server_options: dict[str, Any], options: dict[str, Any]) -> Run:
    async with small_server(**server_options) as server:
        request = LoadRequest(
            **{"url": server.url, "fps": FPS, "sessions": 1, "seconds": 2.0, "script": "busy", **options}
        )
        return Run(await run_load(request), server)


@pytest.fixture(scope="module", autouse=True)
def _no_settling() -> Iterator[None]:
    """The small server has nothing to tidy up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millstream.load.run.SETTLE_S", 0.05)
        yield


@pytest.fixture(scope="module")
def runs(_no_settling: None) -> dict[str, Run]:
    """Every scenario, side by side, each with a server of its own: they wait far more than they work."""

    async def all_of_them() -> list[Run]:
        return await asyncio.gather(*(load(*scenario) for scenario in SCENARIOS.values()))

    return dict(zip(SCENARIOS, asyncio.run(all_of_them()), strict=True))


def test_everybody_plays_and_every_control_shows_at_a_server_that_behaves(runs: dict[str, Run]) -> None:
    result = runs["behaves"].result
    assert [person.outcome for person in result.people] == ["played"] * 3
    assert all(person.num_errors == person.unanswered == 0 for person in result.people)
    assert all((person.continuity or 0) > 0.8 for person in result.people)
    assert sum(person.controls for person in result.people) > 3
    shown = result.everybody["control_shown_s"]
    assert shown is not None
    assert 0 < shown.p50 <= result.people[0].promise_s + 0.1
    assert runs["behaves"].server.live_sessions == {}, "everybody said goodbye"


def test_rude_people_come_back_and_their_nonsense_is_answered(runs: dict[str, Run]) -> None:
    result = runs["rude people"].result
    server = runs["rude people"].server
    assert [person.errors for person in result.people] == [()] * 4
    assert server.opened == 4 + sum(person.reconnects for person in result.people)
    assert sum(person.reconnects for person in result.people) > 0
    assert result.everybody["resume_s"] is not None


def test_who_finds_no_place_is_refused_and_the_refusal_is_timed(runs: dict[str, Run]) -> None:
    result = runs["full"].result
    outcomes = sorted(person.outcome for person in result.people)
    (refused,) = (person for person in result.people if person.outcome == "refused")
    assert outcomes == ["played", "played", "refused"]
    assert refused.reason == "all places are taken"
    assert result.everybody["refusal_s"] is not None
    assert result.everybody["refusal_s"].count == 1


def test_a_server_that_stalls_is_seen_to_stall(runs: dict[str, Run]) -> None:
    result = runs["stalls"].result
    (person,) = result.people
    assert person.misses >= 1
    assert person.stalled_s == pytest.approx(0.5, abs=0.3)
    assert any("continuity" in line for line in missed(result))


def test_controls_that_never_apply_are_missed(runs: dict[str, Run]) -> None:
    (person,) = runs["forgets controls"].result.people
    assert person.unanswered + person.interrupted == person.controls > 0
    assert person.seen["control_shown_s"] is None


def test_a_chunk_that_is_never_sent_is_an_error(runs: dict[str, Run]) -> None:
    (person,) = runs["skips a chunk"].result.people
    assert person.num_errors == 1
    assert "was due" in person.errors[0]


def test_short_visits_leave_nothing_behind(runs: dict[str, Run]) -> None:
    result = runs["short visits"].result
    server = runs["short visits"].server
    assert result.connects is not None
    assert (result.connects.num_errors, result.connects.connects >= 12) == (0, True)
    assert server.live_sessions == {}
    assert server.opened >= 12


def test_memory_of_somebody_elses_server_is_read_from_its_metrics(runs: dict[str, Run]) -> None:
    result = runs["behaves"].result
    assert result.server is not None
    assert result.server.peak_bytes == 150_000_000
    assert result.server.growth == 0


def test_a_server_that_is_not_there_is_said_in_one_line() -> None:
    with pytest.raises(LoadError, match=r"no server is ready at ws://127\.0\.0\.1:9"):
        asyncio.run(run_load(LoadRequest(url="ws://127.0.0.1:9")))
    assert metrics("ws://127.0.0.1:9") == {}


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(LoadError, match="did not start"):
        asyncio.run(run_load(LoadRequest(server_options=("--no-such-option",))))


def test_overhead_is_what_passes_between_chunks_and_goes_into_none() -> None:
    async def overhead(idle_s: float) -> Overhead:
        async with small_server(make_s=0.01, idle_s=idle_s) as server:
            return await measure_overhead(server.url, chunks=12, warm_up=2, fps=16.0)

    lean = asyncio.run(overhead(0.0))
    wasteful = asyncio.run(overhead(0.02))
    assert (lean.chunks, lean.chunk_frames) == (12, 12)
    assert lean.chunk_s >= 0.01
    assert wasteful.share > lean.share >= 0


def test_the_rate_that_is_found_is_the_highest_that_lets_everybody_in() -> None:
    async def find() -> float:
        async with small_server(capacity_fps=100.0) as server:
            rate = await find_rate(server.url, sessions=4, at_most=30.0)
            assert server.live_sessions == {}, "everybody has left again"
            assert await count_admitted(server.url, sessions=6, fps=rate) == 4
            return rate

    assert 25.0 * (1 - PRECISION) < asyncio.run(find()) <= 25.0


def test_the_real_server_keeps_up_with_rude_people() -> None:
    with serving() as real:
        request = LoadRequest(
            sessions=2, seconds=4.0, fps=24.0, script="rude", connects=4, url=f"ws://{real.address}"
        )
        result = asyncio.run(run_load(request))
        real.until_empty()
    assert [(person.outcome, person.errors) for person in result.people] == [("played", ())] * 2
    assert all(person.chunks > 0 for person in result.people)
    assert sum(person.controls for person in result.people) > 0
    assert result.connects is not None
    assert result.connects.errors == ()


def test_a_server_of_its_own_is_started_watched_and_stopped() -> None:
    """At a rate so low that any machine can promise it."""
    options = ("--model", "wan-tiny", "--weights", "random", "--dtype", "float32", "--threads", "1")
    result = asyncio.run(
        run_load(LoadRequest(sessions=1, seconds=1.0, fps=1.0, script="calm", server_options=options))
    )
    (person,) = result.people
    assert (person.outcome, person.errors) == ("played", ())
    assert result.server is not None
    assert result.server.end.resident_bytes > 0
    assert result.server.end.threads is not None


# The command.


@contextmanager
def server_elsewhere(**options: Any) -> Iterator[str]:
    """A small server on a thread of its own; its address."""
    started = threading.Event()
    urls = list[str]()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with small_server(**options) as server:
            urls.append(server.url)
            started.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert started.wait(10)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        loop.close()


def bench(*words: str) -> Any:
    return CliRunner().invoke(
        app, ["bench", "load", "--sessions", "1", "--seconds", "1.5", "--fps", str(FPS), *words]
    )


def test_the_command_shows_a_table_and_writes_a_report(tmp_path: Path) -> None:
    with server_elsewhere() as url:
        done = bench("--url", url, "--out", str(tmp_path / "new" / "load.json"))
    assert done.exit_code == 0, done.output
    assert "continuity" in done.output
    report = json.loads((tmp_path / "new" / "load.json").read_text())
    assert report["benchmark"] == "load"
    assert set(report) >= {"date", "commit", "hardware", "versions", "configuration", "measured"}
    assert report["configuration"]["seconds"] == 1.5
    assert report["measured"]["people"][0]["outcome"] == "played"


def test_the_gate_decides_the_exit_code_and_only_when_asked() -> None:
    with server_elsewhere(stall_at=2, stall_s=0.5) as url:
        told = bench("--url", url, "--json")
        held = bench("--url", url, "--json", "--gate")
    assert (told.exit_code, held.exit_code) == (0, 1)
    assert any("continuity" in line for line in json.loads(held.stdout)["gate"]["missed"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--url", "ws://10.0.0.1:8000"), "only put on this machine"),
        (("--url", "ws://127.0.0.1:9"), "no server is ready"),
        (("--url", "ws://127.0.0.1:9", "--model", "wan-tiny"), "leave them out with --url"),
        (("--script", "drunk"), "calm, busy, rude"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(words: tuple[str, ...], said: str) -> None:
    done = bench(*words)
    assert done.exit_code == 2
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_the_table_has_words_for_all_that_is_measured() -> None:
    assert list(WORDS) == list(Samples.__slots__)
