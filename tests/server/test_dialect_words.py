"""What dialects make of messages, without sockets and models: refusals in their own words, and what they
remember."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from millstream.core.client_messages import ProtocolError
from millstream.core.config import chunks_for, pixel_frames
from millstream.core.controls import Receipt
from millstream.core.trace import ChunkTiming
from millstream.server.access.limits import ClientLimits
from millstream.server.dialects.interpreter import heed
from millstream.server.dialects.sglang import Init
from millstream.server.dialects.transitions import ChunkEvents, Transitions
from millstream.server.protocol import conversation
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.outbox import EncodedChunk
from millstream.server.sessions.viewers import OpeningBytes
from millstream.server.transport.tasks import stop_all
from millstream.serving.notices import Noted
from millstream.session.chunk import Chunk
from tests.server.dialect_clients import DIALECTS, Client, is_error, with_hub
from tests.server.fakes import TINY, FakeService, until


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_server_without_room_says_so_in_the_clients_words_and_may_be_asked_again(dialect: str) -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(dialect, hub)
        refused = [said for said in await client.open() if is_error(said)]
        assert len(refused) == 1
        assert "of the device" in json.dumps(refused[0])
        service.places = 1
        assert not any(is_error(said) for said in await client.open())
        assert len(service.sessions) == 1
        client.handler.on_disconnect()
        assert service.sessions == {}

    with_hub(play, places=0)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_more_messages_than_a_second_holds_are_refused(dialect: str) -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(dialect, hub, ClientLimits(messages_per_s=5, burst_s=1))
        await client.open()
        answers = [said for _ in range(20) for said in await client.say({})]
        assert any("a second" in json.dumps(said) for said in answers if isinstance(said, dict))
        client.handler.on_disconnect()

    with_hub(play)


@pytest.mark.parametrize("dialect", ["vllm_omni", "scope"])
def test_a_text_is_measured_in_bytes_not_in_letters(dialect: str) -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(dialect, hub, ClientLimits(max_text_bytes=100))
        await client.open()
        answers = await client.say(json.dumps({"x": 40 * "海"}, ensure_ascii=False))
        assert any("may have 100 bytes" in json.dumps(said) for said in answers)
        client.handler.on_disconnect()

    with_hub(play)


STEERED: dict[str, dict[str, Any]] = {
    "sglang": {"type": "event", "kind": "prompt", "payload": "storm"},
    "vllm_omni": {"type": "session.interaction", "interaction": {"event": {"prompt": "storm"}}},
    "krea": {"prompt": "storm"},
    "scope": {"prompts": [{"text": "storm"}]},
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_a_dialect_has_read_is_not_read_again(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(text: str) -> None:
        raise AssertionError(f"a message went through JSON on its way: {text}")

    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(dialect, hub)
        await client.open()
        await client.say(STEERED[dialect])
        (session,) = service.sessions.values()
        assert len(session.waiting) == 1
        client.handler.on_disconnect()

    monkeypatch.setattr(conversation, "decode", decode)
    with_hub(play)


@pytest.mark.parametrize(
    ("dialect", "message"),
    [
        ("krea", {"prompt": "sea", "strength": float("nan")}),
        ("sglang", {"type": "init", "prompt": "sea", "fps": float("nan")}),
    ],
)
def test_what_is_not_a_number_opens_nothing(dialect: str, message: dict[str, Any]) -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(dialect, hub)
        assert any(is_error(said) for said in await client.say(message))
        assert service.sessions == {}

    with_hub(play)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_could_not_be_kept_is_told_once_in_the_clients_words(dialect: str) -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(dialect, hub)
        await client.open()
        (live_session,) = hub.live_sessions.values()
        live_session.tell(Noted(words="its journal ends before chunk 3"))
        said = await client.heard()
        service.picture(live_session.session_id)
        await until(lambda: len(client.outbox) > 0)
        said += await client.heard()
        assert (
            json.dumps([each for each in said if isinstance(each, dict)], default=repr).count(
                "before chunk 3"
            )
            == 1
        )
        client.handler.on_disconnect()

    with_hub(play)


def picture(index: int, *receipts: str, parts: tuple[bytes, ...] = (b"film",)) -> EncodedChunk:
    chunk = Chunk(
        index=index, epoch=0, frames=np.empty((0, 1, 1, 3), np.uint8), num_frames=12, fps=16.0, prompts=(), digest="",
        timing=ChunkTiming(total_ms=1.0, phases_ms={}),
        receipts=tuple(Receipt(control_id=each, state="applied", chunk_index=index) for each in receipts),
    )  # fmt: skip
    return EncodedChunk(chunk=chunk, format="mp4", parts=parts)


def test_vllm_omni_events_of_a_chunk_left_out_are_told_with_the_next() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client("vllm_omni", hub)
        await client.open()
        await client.say(
            {"type": "session.interaction", "interaction": {"event_id": "a", "event": {"prompt": "sky"}}}
        )
        assert client.handler.encode(OpeningBytes(b"opening")) == []
        assert client.handler.encode(picture(0, "a", parts=())) == []
        metadata, film = client.handler.encode(picture(1))
        assert film == b"openingfilm"
        told = json.loads(metadata)
        assert (told["transport_chunk_index"], told["generation_chunk_index"]) == (0, 1)
        assert (told["started_event_ids"], told["completed_event_ids"]) == (["a"], ["a"])
        client.handler.on_disconnect()

    with_hub(play)


def test_an_event_that_starts_completes_those_before_it() -> None:
    transitions = Transitions()
    assert transitions.ask("slow", 5)
    assert not transitions.ask("slow", 2), "one that waits is not asked for twice"
    assert transitions.ask("next", 2)
    transitions.advance(["slow", "somebody else's"])
    assert transitions.pop() == ChunkEvents(("slow",), ("slow",), ())
    transitions.advance(["next"])
    assert transitions.pop() == ChunkEvents(("next",), ("next",), ("slow",))
    transitions.advance([])
    assert transitions.pop() == ChunkEvents((), (), ("next",))
    transitions.advance([])
    assert transitions.pop() == ChunkEvents()


@pytest.mark.parametrize("num_frames", [1, 9, 10, 21, 22, 1000])
def test_chunks_hold_at_least_the_frames_asked_for_and_no_chunk_too_many(num_frames: int) -> None:
    chunks = chunks_for(num_frames, TINY)

    def frames(count: int) -> int:
        return sum(pixel_frames(TINY.frames_per_chunk * n, TINY.frames_per_chunk) for n in range(count))

    assert frames(chunks - 1) < num_frames <= frames(chunks)


def test_no_event_is_remembered_by_a_name_without_end() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        name = "n" * 1000
        sglang = Client("sglang", hub)
        omni = Client("vllm_omni", hub)
        for client in (sglang, omni):
            await client.open()
        (told,) = await sglang.say({"type": "event", "kind": "prompt", "payload": "sky", "event_id": name})
        assert (told["type"], "letters" in told["content"]) == ("error", True)
        (told,) = await omni.say(
            {"type": "session.interaction", "interaction": {"event_id": name, "event": {"prompt": "sky"}}}
        )
        assert (told["code"], "letters" in told["message"]) == ("interaction_failed", True)
        for client in (sglang, omni):
            client.handler.on_disconnect()

    with_hub(play)


@pytest.mark.parametrize("event_id", [7, 0, "mine"])
@pytest.mark.parametrize("wrong", [{"kind": 5}, {}, {"kind": None, "payload": []}])
def test_a_malformed_event_is_answered_with_its_id(event_id: int | str, wrong: dict[str, Any]) -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        sglang = Client("sglang", hub)
        omni = Client("vllm_omni", hub)
        asked = {"type": "event", "event_id": event_id, **wrong}
        (early,) = await sglang.say(asked)
        assert (early["code"], early["event_id"]) == ("bad_state", event_id)
        for client in (sglang, omni):
            await client.open()
        (told,) = [said for said in await sglang.say(asked) if is_error(said)]
        assert (told["code"], told["event_id"]) == ("bad_message", event_id)
        if isinstance(event_id, str):
            (told,) = await omni.say(
                {"type": "session.interaction", "interaction": {"event_id": event_id, **wrong}}
            )
            assert told["event_id"] == event_id
        for client in (sglang, omni):
            client.handler.on_disconnect()

    with_hub(play)


def test_fields_that_ask_for_nothing_are_not_mentioned() -> None:
    fields = {
        "prompt": "sea",
        "type": "init",
        "profile": False,
        "negative_prompt": "",
        "lora": None,
        "quality": 95,
    }
    heeded, unknown = heed(fields, Init)
    assert (heeded.prompt, unknown) == ("sea", ("quality",))
    with pytest.raises(ProtocolError, match="prompt"):
        heed({}, Init)


def test_tasks_end_even_when_a_cancellation_is_swallowed() -> None:
    async def deaf(times: int) -> str:
        for _ in range(times):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue
        return "ended"

    async def main() -> None:
        tasks = [asyncio.ensure_future(deaf(times)) for times in (1, 2)]
        await asyncio.sleep(0)
        assert await stop_all(tasks) == ["ended", "ended"]

    asyncio.run(main())
