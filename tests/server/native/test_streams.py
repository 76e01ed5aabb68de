"""The native protocol over real sockets and a real model: people steer, leave, come back and wait in line."""

from __future__ import annotations

import io
import socket

import av
import numpy as np
import pytest
import torch
from PIL import Image
from websockets.exceptions import ConnectionClosed

from tests.server.serving import START, Serving, serving


def test_a_prompt_is_steered_and_gets_its_two_receipts(server: Serving) -> None:
    with server.client() as client:
        live = client.start()
        assert live["format"] == "jpeg"
        first = client.hear("chunk")
        assert (first["index"], first["frames"], len(first["parts"])) == (0, 9, 9)
        assert Image.open(io.BytesIO(first["parts"][0])).size == (32, 16)
        assert first["prompts"] == [{"text": "sea", "weight": 1.0}]
        client.say({"type": "control", "control": {"type": "prompt", "prompt": "storm", "id": "mine"}})
        queued = client.hear("receipt", state="queued")
        applied = client.hear("receipt", state="applied")
        shown = client.hear("chunk", index=applied["chunk_index"])
        assert queued["control_id"] == applied["control_id"] == "mine"
        assert shown["receipts"] == [
            {"control_id": "mine", "state": "applied", "chunk_index": shown["index"]}
        ]
        assert shown["prompts"][0]["text"] == "storm"
        assert client.hear("stats")["viewers"] == 1
        client.say({"type": "stop"})
        assert client.hear("ended")["cause"] == "closed"
        with pytest.raises(ConnectionClosed) as closed:
            client.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000


def test_two_people_have_two_pictures_and_the_same_seed_gives_the_same(server: Serving) -> None:
    with server.client() as one, server.client() as two, server.client() as three:
        for client, seed in ((one, 1), (two, 2), (three, 1)):
            client.start(formats=["raw"], seed=seed)
        pictures = [
            [client.hear("chunk", index=index)["parts"] for index in range(3)] for client in (one, two, three)
        ]
        assert pictures[0] == pictures[2]
        assert pictures[0] != pictures[1]


def test_a_film_in_fragments_plays_from_wherever_one_joins(server: Serving) -> None:
    with server.client() as owner, server.client() as late:
        live = owner.start(formats=["mp4"])
        opening = owner.hear("init")["parts"][0]
        parts = [owner.hear("chunk", index=index)["parts"][0] for index in range(3)]
        with av.open(io.BytesIO(opening + b"".join(parts))) as film:
            assert len(list(film.decode(video=0))) == 33
        late.say({"type": "view", "version": 1, "view": live["view"], "formats": ["mp4"]})
        late_opening = late.hear("init")["parts"][0]
        chunk = late.hear("chunk")
        with av.open(io.BytesIO(late_opening + chunk["parts"][0])) as film:
            assert len(list(film.decode(video=0))) == 12


def test_a_lost_connection_stands_still_and_goes_on_where_it_was(server: Serving) -> None:
    with server.client() as client:
        session = client.start(formats=["raw"])["session"]
        client.hear("chunk", index=1)
        client.connection.socket.shutdown(socket.SHUT_RDWR)  # as when a cable is pulled
    live_session = server.hub.live_sessions[session]
    server.until(lambda: not live_session.viewers, "the loss is noticed")
    with server.client() as again:
        again.say({"type": "attach", "version": 1, "session": session, "formats": ["raw"]})
        assert again.hear("live")["session"] == session
        first = again.hear("chunk")
        following = again.hear("chunk")
        assert following["index"] == first["index"] + 1
        assert following["media_s"] > first["media_s"] > 0


def test_many_may_watch_one_session(server: Serving) -> None:
    with server.client() as owner:
        live = owner.start(formats=["raw"])
        watchers = [server.client() for _ in range(4)]
        clients = [watcher.__enter__() for watcher in watchers]
        for client in clients:
            client.say({"type": "view", "version": 1, "view": live["view"], "formats": ["raw"]})
            assert client.hear("live")["session"] == ""
        target = owner.hear("chunk")["index"] + 3
        expected = owner.hear("chunk", index=target)["parts"]
        for client in clients:
            assert client.hear("chunk", index=target)["parts"] == expected
        for watcher in watchers:
            watcher.__exit__(None, None, None)


def test_who_watches_is_told_of_a_pause_and_of_its_end(server: Serving) -> None:
    with server.client() as owner, server.client() as watcher:
        live = owner.start()
        watcher.say({"type": "view", "version": 1, "view": live["view"]})
        assert watcher.hear("stats")["paused"] is False
        for control, paused in (("pause", True), ("resume", False)):
            owner.say({"type": "control", "control": {"type": control}})
            watcher.hear("receipt", state="applied")
            assert watcher.hear("stats")["paused"] is paused


def test_who_comes_back_is_told_what_controls_have_made_of_the_stream(server: Serving) -> None:
    with server.client() as client, server.client() as again:
        live = client.start(seed=3, fps="auto")
        assert (live["config"]["seed"], live["config"]["rate"], live["config"]["source"]) == (3, "auto", "")
        client.hear("chunk")
        client.say({"type": "control", "control": {"type": "seed", "seed": 4}})
        client.hear("receipt", state="applied")
        again.say({"type": "attach", "version": 1, "session": live["session"]})
        assert again.hear("live")["config"] == live["config"] | {"seed": 4}


def test_a_camera_in_and_a_picture_out(server: Serving) -> None:
    with server.client() as client:
        client.start(input=True, noise_scale=0.3, formats=["raw"])
        for number in range(21):
            file = io.BytesIO()
            Image.fromarray(np.full((48, 60, 3), 10 * number, np.uint8)).save(file, "JPEG")
            client.say(file.getvalue())
        assert client.hear("chunk")["frames"] == 9
        assert client.hear("chunk")["frames"] == 12
        client.say(b"no picture")
        assert client.hear("error")["code"] == "bad_message"
        client.say({"type": "control", "control": {"type": "noise_scale", "noise_scale": 0.9}})
        assert client.hear("receipt")["state"] == "queued"


def test_the_line_is_told_and_moves_up() -> None:
    with (
        serving(places=1) as small,
        small.client() as first,
        small.client() as second,
        small.client() as third,
    ):
        first.start()
        first.hear("chunk")
        second.say(START | {"wait": True})
        assert second.hear("waiting")["position"] == 1
        second.say({"type": "control", "control": {"type": "cut"}})
        assert second.hear("error")["code"] == "bad_control"
        third.say(START)
        refused = third.hear("error")
        assert refused["code"] == "refused"
        assert refused["message"]
        first.say({"type": "stop"})
        assert second.hear("live")["session"]
        assert second.hear("chunk")["index"] == 0


def test_controls_after_stop_are_answered_until_the_session_has_ended(server: Serving) -> None:
    with server.client() as client:
        client.start()
        client.hear("chunk")
        late = [{"type": "cut", "id": f"late{number}"} for number in range(5)]
        client.say_at_once(
            *({"type": "control", "control": each} for each in ({"type": "stop", "id": "stop"}, *late))
        )
        assert client.hear("ended")["cause"] == "stopped"
        with pytest.raises(ConnectionClosed):
            client.next()
        answers = {
            message["control_id"] for message in client.heard if message["type"] in ("receipt", "error")
        }
        assert answers == {"stop", *(each["id"] for each in late)}


def test_a_session_that_fails_ends_alone(server: Serving) -> None:
    with server.client() as well, server.client() as ill:
        well.start()
        session = ill.start(seed=99)["session"]  # one that begins alike would take its chunks from the other
        ill.hear("chunk")
        caches = server.hub.service.engine.generator.caches

        def fall_ill(live: object) -> None:
            def out_of_memory(decision: object) -> None:
                raise torch.OutOfMemoryError("CUDA out of memory")

            live.prepare = out_of_memory  # type: ignore[attr-defined]

        server.hub.service.on_engine(session, fall_ill).result(30)
        ended = ill.hear("ended")
        assert ended["cause"] == "failed"
        assert "memory" in ended["reason"]
        assert session not in caches
        well.hear("chunk", index=well.hear("chunk")["index"] + 2)
