"""People who talk rubbish, shout, read slowly or come and go over real sockets; nobody else notices."""

from __future__ import annotations

import json
import random
import threading

import pytest
from websockets.exceptions import ConnectionClosed

from tests.server.serving import START, Client, Serving
from tests.server.test_wrong_messages import message as rubbish


def loose_threads() -> int:
    """Those of no pool: a pool's come when they are needed and are few."""
    return sum(not thread.name.startswith(("millstream-", "asyncio_")) for thread in threading.enumerate())


def talk_rubbish(server: Serving, spared: str) -> None:
    dice = random.Random(11)
    for _ in range(8):
        with server.client(close_timeout=0.1) as rude:
            for _ in range(40):
                names = ["nobody", *(set(server.hub.live_sessions) - {spared})]
                try:
                    rude.say(rubbish(dice, names) if dice.random() < 0.9 else json.dumps(START))
                except ConnectionClosed:  # it may have said stop, or too much that was wrong
                    break


def test_rubbish_over_real_sockets_disturbs_nobody_and_leaves_nothing(server: Serving) -> None:
    """Some hundred messages from clients that leave in the middle, beside one whose pictures must not
    change."""
    with server.client() as calm:
        calm.start(formats=["raw"], seed=5)
        alone = [calm.hear("chunk", index=index)["parts"] for index in range(5)]
    threads = loose_threads()
    with server.client() as calm:
        own = calm.start(formats=["raw"], seed=5)["session"]
        crowd = threading.Thread(target=talk_rubbish, args=(server, own))
        crowd.start()
        assert [calm.hear("chunk", index=index)["parts"] for index in range(5)] == alone
        while crowd.is_alive():
            calm.next()
    server.until(
        lambda: all(not live_session.viewers for live_session in server.hub.live_sessions.values()),
        "everybody has left",
    )
    server.until(lambda: loose_threads() <= threads, "all threads are gone")


def test_one_who_says_only_wrong_things_is_sent_away(server: Serving) -> None:
    def insist(client: Client) -> None:
        for _ in range(200):
            client.say("rubbish")
            client.hear("error")

    with server.client() as client:
        with pytest.raises(ConnectionClosed) as closed:
            insist(client)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


def test_a_message_that_is_far_too_large_closes_the_connection_it_came_on(server: Serving) -> None:
    def shout(client: Client) -> None:
        client.say(b"x" * (9 * 2**20))
        client.hear("chunk")

    with server.client() as client:
        with pytest.raises(ConnectionClosed) as closed:
            shout(client)
        told = closed.value.rcvd  # nothing, where the line broke while it was still being shouted into
        assert told is None or told.code == 1009


def test_connecting_and_leaving_a_hundred_times_leaves_nothing(server: Serving) -> None:
    threads = loose_threads()
    for number in range(100):
        with server.client() as client:
            if number % 4 == 0:
                client.start(fps=1.0)
            if number % 12 == 0:
                client.hear("chunk")
            if number % 2:
                client.connection.socket.close()
    server.until(
        lambda: all(not live_session.viewers for live_session in server.hub.live_sessions.values()),
        "everybody has left",
    )
    for session_id in list(server.hub.live_sessions):
        server.hub.service.end(session_id)
    server.until(lambda: not server.hub.live_sessions and not server.hub._tasks, "all tasks are done")
    server.until(lambda: loose_threads() <= threads, "all threads are gone")
    assert server.hub.service.engine.generator.caches == {}


def test_a_slow_reader_loses_pictures_oldest_first_and_no_receipt(server: Serving) -> None:
    """It asks for raw pictures through a narrow socket, reads nothing for a while, then everything."""
    with server.client(narrow=True) as slow, server.client() as quick:
        live = slow.start(formats=["raw"], lead_s=30)
        quick.say({"type": "attach", "version": 1, "session": live["session"]})
        quick.hear("live")
        for number in range(12):
            quick.say({"type": "control", "control": {"type": "seed", "seed": number, "id": f"s{number}"}})
            quick.hear("receipt", control_id=f"s{number}", state="applied")
        last = quick.hear("chunk")["index"]
        (viewer,) = [v for v in server.hub.live_sessions[live["session"]].viewers if v.format == "raw"]
        server.until(lambda: viewer.outbox.dropped > 0, "pictures are dropped")
        chunks = [slow.hear("chunk")]
        while chunks[-1]["index"] <= last or not chunks[-1]["parts"]:
            chunks.append(slow.hear("chunk"))
        assert [chunk["index"] for chunk in chunks] == list(range(len(chunks))), (
            "every header comes, in order"
        )
        assert chunks[-1]["dropped"] > 0
        assert any(not chunk["parts"] for chunk in chunks)
        receipts = [receipt["control_id"] for chunk in chunks for receipt in chunk["receipts"]]
        assert [name for name in receipts if name.startswith("s")] == [f"s{number}" for number in range(12)]
