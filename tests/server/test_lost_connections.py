"""State that a client finds again after a lost connection: its recording, its place in line."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

from tests.server.serving import START, serving


def test_a_recording_goes_on_when_its_owner_comes_back(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        with server.client() as owner:
            session = owner.start()["session"]
            owner.say({"type": "record", "on": True})
            url = owner.hear("recording")["url"]
            owner.hear("chunk")
            owner.hear("chunk")
        with server.client() as back, server.client() as viewer:
            back.say({"type": "attach", "version": 1, "session": session})
            live = back.hear("live")
            assert (live["recording"], live["recorded_s"] > 0) == (url, True)
            viewer.say({"type": "view", "version": 1, "view": live["view"]})
            assert viewer.hear("live")["recording"] == "", "not a viewer's business"
            back.hear("chunk")
            back.say({"type": "record", "on": False})
            assert back.hear("recording")["url"] == url
            with urlopen(server.url(url)) as film:
                assert b"ftyp" in film.read(64)
            back.say({"type": "record", "on": True})
            back.hear("recording")
            back.hear("chunk")
            back.say({"type": "stop"})
            back.hear("ended")
        server.until(
            lambda: len(list((tmp_path / "recordings").glob("*.mp4"))) == 2,
            "one ends with its session at the latest",
        )


def test_who_loses_the_connection_in_line_comes_back_to_the_same_place() -> None:
    with serving(places=1, max_waiting=2) as server, server.client() as owner, server.client() as behind:
        owner.start()
        with server.client() as lost:
            lost.say(START | {"wait": True, "prompt": "mine"})
            place = lost.hear("waiting")
        behind.say(START | {"wait": True})
        assert behind.hear("waiting")["position"] == 2
        with server.client() as back:
            back.say({"type": "attach", "version": 1, "session": place["session"]})
            assert back.hear("waiting") == place
            owner.say({"type": "stop"})
            assert back.hear("live")["session"] == place["session"]
            assert [each["text"] for each in back.hear("chunk")["prompts"]] == ["mine"]
