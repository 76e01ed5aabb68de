"""The abuse suite itself: small runs of all of it, and servers on which it must fail. A suite that cannot is
worth nothing."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.core.errors import ConfigError
from millstream.load.host import Host
from millstream.load.run import LoadRequest, put_load
from millstream.server.transport.tasks import stop_all
from tests.server.attacked import Attacked, attacked_here, quiet_log
from tests.server.serving import wait_until
from tests.server.small_server import small_server
from tests.soak.abuse import parse
from tests.soak.abuses.__main__ import attack
from tests.soak.abuses.beside import missed_beside
from tests.soak.abuses.campaign import run_campaign
from tests.soak.abuses.kinds import ABUSES
from tests.soak.abuses.mutations import mutate, mutate_bytes
from tests.soak.abuses.phrases import PROTOCOLS
from tests.soak.abuses.scene import Scene
from tests.soak.abuses.server import Load, grown, slope_per_hour
from tests.soak.abuses.signalling import mutated_candidate, mutated_offer
from tests.soak.abuses.soak import missed_in_soak, turns
from tests.soak.abuses.tally import CallCount
from tests.soak.abuses.target import Target


@pytest.mark.parametrize(
    "url",
    ["ws://10.0.0.1:80", "ws://example.org", "ws://0.0.0.0:80", "https://127.0.0.1", "ws://[fd00::1]:1", ""],
)
def test_no_address_but_this_machines_is_ever_attacked(url: str) -> None:
    with pytest.raises(ConfigError):
        Target.at(url)


def test_every_source_address_is_this_machines() -> None:
    chance = random.Random(0)
    target = Target.at("ws://localhost:8000")
    assert target.host == "127.0.0.1"
    assert all((target.source(chance) or "127.").startswith("127.") for _ in range(100))


def test_no_offer_and_no_candidate_sends_the_server_elsewhere() -> None:
    chance = random.Random(0)
    for _ in range(500):
        text = mutated_offer(chance) + " " + mutated_candidate(chance)
        quads = [word for word in text.split() if word.count(".") == 3 and word.replace(".", "").isdecimal()]
        assert all(word.startswith("127.") for word in quads)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_the_same_seed_says_the_same_and_nearly_all_of_it_is_wrong(protocol: Any) -> None:
    once, again = ([protocol.mutated(random.Random(seed)) for seed in range(300)] for _ in range(2))
    assert once == again
    right = {protocol.encode(fields) for fields in (protocol.opening, *protocol.phrases)}
    assert sum(each not in right for each in once) > 200
    assert len(set(once)) > 200


def test_a_mutation_leaves_what_it_was_made_of_as_it_was() -> None:
    chance = random.Random(1)
    fields = {"a": [1, {"b": "c"}], "d": 2.5}
    kept = json.dumps(fields)
    assert any(json.dumps(mutate(fields, chance), default=repr) != kept for _ in range(10))
    assert json.dumps(fields) == kept
    assert mutate_bytes(b"", chance) is not None


def test_every_kind_has_its_turn_before_any_has_its_second() -> None:
    order = turns(3, 0)
    assert {next(order)[0] for _ in ABUSES} == set(ABUSES)
    assert len(ABUSES) >= 20


def test_wrong_messages_over_every_protocol_are_answered_and_logged_without_a_traceback(
    tmp_path: Path,
) -> None:
    with attacked_here(tmp_path) as server, quiet_log():
        tally = asyncio.run(run_campaign(server.target, mutations=1500, seed=5, limit_s=90))
        assert server.is_ready()
    assert tally.total == 1500
    assert set(tally.sent) == {"native", "sglang", "vllm-omni", "krea", "rest", "webrtc"}
    assert (tally.failures, tally.unanswered) == ([], [])
    assert tally.summary()["parsed"] > 1000


def test_every_kind_of_abuse_gets_something_done_and_leaves_the_server_ready(tmp_path: Path) -> None:
    async def done_by(kind: str, scene: Scene) -> dict[str, int]:
        """By whichever machine, however busy."""
        attacking = asyncio.ensure_future(attack(kind, scene))
        while not scene.did and scene.left_s:
            await asyncio.sleep(0.02)
        await stop_all([attacking])
        return dict(scene.did)

    async def all_kinds(server: Attacked) -> list[dict[str, int]]:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: None
        )  # of attackers; the server's has its own
        return await asyncio.gather(*(done_by(kind, server.scene()) for kind in ABUSES))

    with attacked_here(tmp_path) as server, quiet_log():
        did = dict(zip(ABUSES, asyncio.run(all_kinds(server)), strict=True))
        wait_until(server.is_ready, "the attackers' connections are gone and it answers")
    assert [kind for kind, done in did.items() if not done] == []


Answerer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def fake(answer: Answerer) -> AsyncIterator[Target]:
    """A server that does one thing with every connection."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield Target("127.0.0.1", server.sockets[0].getsockname()[1])


def campaign_on(answer: Answerer) -> CallCount:
    async def run() -> CallCount:
        async with fake(answer) as target:
            return await run_campaign(target, mutations=200, seed=0, limit_s=3)

    return asyncio.run(run())


def test_a_server_that_answers_500_is_caught() -> None:
    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(2**16)
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    tally = campaign_on(fail)
    assert tally.num_failed > 0
    assert "500" in tally.failures[0]


def test_a_server_that_never_answers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.soak.abuses.requests.ANSWER_S", 0.2)
    monkeypatch.setattr("tests.soak.abuses.frames.OPEN_S", 0.2)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    assert campaign_on(hang).unanswered


def test_a_viewer_whose_picture_stands_still_is_caught() -> None:
    async def watch() -> dict[str, Any]:
        async with small_server(stall_at=5, stall_s=0.5) as server:
            request = LoadRequest(sessions=1, seconds=3.0, fps=60.0)
            result = await put_load(Host(url=server.url, pid=None), request)
        (viewer,) = result.people
        quiet = {"healthz_slowest_s": 0.1, "healthz_unanswered": 0, "log_lines": 3}
        granted = {"granted_before": {"sessions": True}, "refused_afterwards": []}
        return {"continuity": viewer.continuity, "errors": (), **quiet, **granted}

    seen = asyncio.run(watch())
    (line,) = missed_beside("some_abuse", seen)
    assert "continuity" in line
    assert missed_beside("some_abuse", {**seen, "continuity": 1.0}) == []
    assert missed_beside("some_abuse", {**seen, "continuity": None})
    assert (
        "sessions"
        in missed_beside("some_abuse", {**seen, "continuity": 1.0, "refused_afterwards": ["sessions"]})[0]
    )
    for measured in ({"healthz_slowest_s": 0.6}, {"healthz_unanswered": 1}, {"log_lines": 100}):
        assert len(missed_beside("some_abuse", {**seen, "continuity": 1.0, **measured})) == 1


def test_what_does_not_come_back_is_named() -> None:
    before = Load(resident_bytes=1000, threads=10, descriptors=50, sessions=0)
    assert grown(before, Load(resident_bytes=1019, threads=10, descriptors=50, sessions=3), 0.02) == []
    lines = grown(before, Load(resident_bytes=1021, threads=11, descriptors=52, sessions=0), 0.02)
    assert [line.split()[0] for line in lines] == ["resident_bytes", "threads", "descriptors"]


def test_a_soak_is_judged_by_its_viewers_and_its_levels() -> None:
    level = {"growth": 0.0}
    good = {
        "viewers": [{"person": 0, "continuity": 0.995, "errors": ()}],
        "server": {"resident_bytes": level},
        "broken_attackers": [],
    }
    assert missed_in_soak(good) == []
    assert missed_in_soak({**good, "server": {"resident_bytes": {"growth": 0.03}}})
    assert missed_in_soak({**good, "viewers": [{"person": 0, "continuity": None, "errors": ()}]})
    assert missed_in_soak({**good, "broken_attackers": ["one"]}) == ["one"]
    assert slope_per_hour([0.0, 1800.0], [100.0, 150.0]) == pytest.approx(100)


def test_a_run_is_bounded_and_is_one_thing(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--mutations", "250000"]).mutations == 250_000
    for words in (
        [],
        ["--beside", "--soak", "5"],
        ["--soak", "1e9"],
        ["--mutations", "99999999"],
        ["--beside", "--kinds", "nothing"],
    ):
        with pytest.raises(SystemExit):
            parse(words)
    assert capsys.readouterr().err


def test_a_server_that_is_gone_is_caught_and_not_asked_for_ever() -> None:
    async def gone() -> CallCount:
        async with fake(lambda reader, writer: asyncio.sleep(0)) as target:
            pass
        return await run_campaign(target, mutations=100_000, seed=0, limit_s=60)

    tally = asyncio.run(gone())
    assert tally.hopeless
    assert "no connection" in tally.unanswered[0]
