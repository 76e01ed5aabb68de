"""What dialects make of messages, without sockets and models: refusals in their own words, and thousands of wrong messages."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from benchmarks.abuses.mutations import mutate, mutate_bytes
from benchmarks.abuses.phrases import KREA, SGLANG, VLLM
from millstream.core.config import chunks_for, pixel_frames
from millstream.core.controls import Receipt
from millstream.core.messages import Ask, ProtocolError
from millstream.server.access.limits import ClientLimits
from millstream.server.dialects.interpreter import heed
from millstream.server.dialects.krea import Krea, KreaParameters
from millstream.server.dialects.scope_parameters import ScopeChannel, ScopeParameters
from millstream.server.dialects.sglang import Init, SGLang
from millstream.server.dialects.transitions import ChunkEvents, Transitions
from millstream.server.dialects.vllm_omni import SessionStart, VLLMOmni
from millstream.server.protocol import conversation
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.live_session import OpeningBytes
from millstream.server.sessions.outbox import ChunkInfo, EncodedChunk, Outbox
from millstream.server.transport.tasks import stop_all
from millstream.server.transport.websocket_loop import Talker, messages
from millstream.serving.notices import Noted
from tests.server.clients.facts import differences
from tests.server.fakes import TINY, FakeService, fake_hub, until

GENEROUS = ClientLimits(messages_per_s=1e9, controls_per_s=1e9, frames_per_s=1e9)
MakeTalker = Callable[[SessionHub, Outbox, ClientLimits], Talker]
DIALECTS: dict[str, MakeTalker] = {"sglang": SGLang, "vllm_omni": VLLMOmni, "krea": Krea, "scope": ScopeChannel}
OPENINGS: dict[str, dict[str, Any]] = {
    "sglang": {"type": "init", "prompt": "sea"},
    "vllm_omni": {"type": "session.start", "prompt": "sea"},
    "krea": {"prompt": "sea"},
}
PACKS = ("sglang", "krea")
"""Dialects that speak MessagePack."""


class Client:
    """One side of a dialect's conversation, without a socket."""

    def __init__(self, dialect: str, hub: SessionHub, limits: ClientLimits = GENEROUS) -> None:
        self.dialect, self.outbox = dialect, Outbox()
        self.talker = DIALECTS[dialect](hub, self.outbox, limits)

    async def open(self) -> list[Any]:
        if isinstance(self.talker, ScopeChannel):
            await self.talker.start(Ask(prompt="sea"), ScopeParameters(), ())
            return await self.heard()
        return await self.say(OPENINGS[self.dialect])

    async def say(self, message: Any) -> list[Any]:
        """Everything that is heard once a message was taken; pictures as bytes."""
        if not isinstance(message, (str, bytes)):
            message = msgspec.msgpack.encode(message) if self.dialect in PACKS else json.dumps(message)
        await self.talker.hear(message)
        return await self.heard()

    async def heard(self) -> list[Any]:
        for _ in range(5):  # a fake's notices take a turn or two of the loop
            await asyncio.sleep(0)
        found: list[Any] = []
        while len(self.outbox):
            found += [self._read(data) for data in messages(self.talker.say(await self.outbox.take()))]
        return found

    def _read(self, data: str | bytes) -> Any:
        if isinstance(data, str):
            return json.loads(data)
        return msgspec.msgpack.decode(data) if self.dialect == "sglang" else data


def with_hub(play: Callable[[SessionHub, FakeService], Awaitable[None]], *, patience_s: float = 60, **options: Any) -> None:
    async def main() -> None:
        service = FakeService(**options)
        hub = fake_hub(service)
        try:
            await asyncio.wait_for(play(hub, service), patience_s)
        finally:
            await hub.close()
        assert hub.live_sessions == {}

    asyncio.run(main())


def is_error(said: Any) -> bool:
    return isinstance(said, dict) and (said.get("type") == "error" or "error" in said)


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
        client.talker.leave()
        assert service.sessions == {}

    with_hub(play, places=0)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_more_messages_than_a_second_holds_are_refused(dialect: str) -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(dialect, hub, ClientLimits(messages_per_s=5, burst_s=1))
        await client.open()
        answers = [said for _ in range(20) for said in await client.say({})]
        assert any("a second" in json.dumps(said) for said in answers if isinstance(said, dict))
        client.talker.leave()

    with_hub(play)


@pytest.mark.parametrize("dialect", ["vllm_omni", "scope"])
def test_a_text_is_measured_in_bytes_not_in_letters(dialect: str) -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client(dialect, hub, ClientLimits(max_text_bytes=100))
        await client.open()
        answers = await client.say(json.dumps({"x": 40 * "海"}, ensure_ascii=False))
        assert any("may have 100 bytes" in json.dumps(said) for said in answers)
        client.talker.leave()

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
        client.talker.leave()

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
        assert json.dumps([each for each in said if isinstance(each, dict)], default=repr).count("before chunk 3") == 1
        client.talker.leave()

    with_hub(play)


def rubbish(dice: random.Random) -> Any:
    """A value of any kind, some of them almost right."""
    plain = [
        None,
        True,
        0,
        1,
        -1,
        2**63,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "x",
        "64x64",
        "\0",
        [],
        {},
        [1000, 500],
        0.5,
        3,
    ]
    right = [
        [{"text": "sky", "weight": 0.5}],
        {"prompt": "sky"},
        {"event": {"prompt": "sky"}, "transition_chunks": 2},
        {"event_id": "a", "event": {"prompt": "sky"}},
        {"target_prompts": [{"text": "sky"}], "num_steps": 3},
        "prompt",
        "reset",
        "camera_actions",
    ]
    return dice.choice(plain + right)


def message(dice: random.Random, dialect: str) -> str | bytes:
    """Mostly the right shape with something wrong in it; now and then noise."""
    if dice.random() < 0.1:
        return bytes(dice.randrange(256) for _ in range(dice.randrange(40)))
    if dice.random() < 0.05:
        return "".join(chr(dice.randrange(0x20, 0xD7FF)) for _ in range(dice.randrange(40)))
    kinds = ("init", "event", "session.start", "session.interaction", "session.ping", "session.stop", "nonsense")
    fields = (
        *Init.__struct_fields__,
        *SessionStart.__struct_fields__,
        *KreaParameters.__struct_fields__,
        *ScopeParameters.__struct_fields__,
    )
    said: dict[str, Any] = dict(OPENINGS.get(dialect, {})) if dice.random() < 0.3 else {"type": dice.choice(kinds)}
    for _ in range(dice.randrange(4)):
        name = dice.choice((*fields, "kind", "payload", "event_id", "interaction", "interp_steps", "action", "image", "extra"))
        said[name] = rubbish(dice)
    if dialect not in PACKS:
        return json.dumps(said)
    try:
        return msgspec.msgpack.encode(said)
    except OverflowError:
        return b""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_thousands_of_wrong_messages_harm_nobody_and_leave_nothing_behind(dialect: str) -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        dice, errors, opened = random.Random(4), 0, 0
        calm = Client(dialect, hub)
        await calm.open()
        (session,) = service.sessions
        client = Client(dialect, hub)
        for number in range(3000):
            if number % 25 == 0:
                client.talker.leave()
                client = Client(dialect, hub)
                if dialect == "scope" or dice.random() < 0.5:
                    await client.open()
            heard = await client.say(message(dice, dialect))
            errors += any(is_error(said) for said in heard)
            opened += len(service.sessions) > 1
            for name in list(service.sessions):
                service.picture(name)
            await calm.heard()
        assert errors > 300
        assert opened > 300
        client.talker.leave()
        assert list(service.sessions) == [session]
        calm.talker.leave()

    with_hub(play)


SCOPE_PHRASES: tuple[dict[str, Any], ...] = (
    {"prompts": [{"text": "storm", "weight": 100}, "sky"], "denoising_step_list": [1000, 500], "node_id": "a"},
    {"transition": {"target_prompts": [{"text": "night", "weight": 1.0}], "num_steps": 4}, "manage_cache": True},
    {"noise_scale": 0.5, "kv_cache_attention_bias": 0.3, "paused": False, "reset_cache": True, "recording": False},
    {"input_mode": "video", "vace_context_scale": 1.0, "graph": {"nodes": [], "edges": []}, "pipeline_ids": ["x"]},
)
SPOKEN = {"sglang": SGLANG, "vllm_omni": VLLM, "krea": KREA}


def mutated(dialect: str, dice: random.Random) -> str | bytes:
    """What its clients say, with something wrong in it, in its fields or its bytes."""
    if dialect in SPOKEN:
        return SPOKEN[dialect].mutated(dice)
    text = json.dumps(mutate(dice.choice(SCOPE_PHRASES), dice), default=repr)
    return mutate_bytes(text.encode(), dice).decode("latin-1") if dice.random() < 0.25 else text


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_mutated_messages_are_answered_in_its_own_words_and_never_with_a_traceback(
    dialect: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        dice, errors, wrong = random.Random(26), 0, []
        client = Client(dialect, hub)
        for number in range(count):
            if number % 20 == 0:
                client.talker.leave()
                client = Client(dialect, hub)
                if dialect == "scope" or dice.random() < 0.7:
                    await client.open()
            for said in await client.say(mutated(dialect, dice)):
                if isinstance(said, dict) and dialect != "scope":
                    kind = said.get("type") or next(name for name in ("error", "session_id", "status") if name in said)
                    kind = {"session_id": "completed"}.get(kind, kind)
                    own_id = isinstance(said.get("event_id"), str)  # no peer's client, but it comes back as it was sent
                    wrong += differences(dialect, kind, said | {"event_id": 1} if own_id and dialect == "sglang" else said)
                errors += is_error(said)
            for name in list(service.sessions):
                service.picture(name)
        client.talker.leave()
        assert wrong == []
        assert errors > count // 20
        assert service.sessions == {}

    with_hub(play, patience_s=600)
    assert not [record for record in caplog.records if record.exc_info], "something was logged with a traceback"


def picture(index: int, *receipts: str, parts: tuple[bytes, ...] = (b"film",)) -> EncodedChunk:
    info = ChunkInfo(
        index=index, epoch=0, media_s=0.0, fps=16.0, num_frames=12, prompts=(), unknown=(), late_s=0.0, total_ms=1.0,
        phases_ms={},
        receipts=tuple(Receipt(control_id=each, state="applied", chunk_index=index) for each in receipts),
    )  # fmt: skip
    return EncodedChunk(info=info, format="mp4", parts=parts)


def test_vllm_omni_events_of_a_chunk_left_out_are_told_with_the_next() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        client = Client("vllm_omni", hub)
        await client.open()
        await client.say({"type": "session.interaction", "interaction": {"event_id": "a", "event": {"prompt": "sky"}}})
        assert client.talker.say(OpeningBytes(b"opening")) == []
        assert client.talker.say(picture(0, "a", parts=())) == []
        metadata, film = client.talker.say(picture(1))
        assert film == b"openingfilm"
        told = json.loads(metadata)
        assert (told["transport_chunk_index"], told["generation_chunk_index"]) == (0, 1)
        assert (told["started_event_ids"], told["completed_event_ids"]) == (["a"], ["a"])
        client.talker.leave()

    with_hub(play)


def test_an_event_that_starts_completes_those_before_it() -> None:
    transitions = Transitions()
    assert transitions.ask("slow", 5)
    assert not transitions.ask("slow", 2), "one that waits is not asked for twice"
    assert transitions.ask("next", 2)
    transitions.advance(["slow", "somebody else's"])
    assert transitions.take() == ChunkEvents(("slow",), ("slow",), ())
    transitions.advance(["next"])
    assert transitions.take() == ChunkEvents(("next",), ("next",), ("slow",))
    transitions.advance([])
    assert transitions.take() == ChunkEvents((), (), ("next",))
    transitions.advance([])
    assert transitions.take() == ChunkEvents()


@pytest.mark.parametrize("num_frames", [1, 9, 10, 21, 22, 1000])
def test_chunks_hold_at_least_the_frames_asked_for_and_no_chunk_too_many(num_frames: int) -> None:
    chunks = chunks_for(num_frames, TINY)

    def frames(count: int) -> int:
        return sum(pixel_frames(TINY.frames_per_chunk * n, TINY.frames_per_chunk) for n in range(count))

    assert frames(chunks - 1) < num_frames <= frames(chunks)


def test_no_event_is_remembered_by_a_name_without_end() -> None:
    async def play(hub: SessionHub, service: FakeService) -> None:
        name = "n" * 1000
        sglang, omni = Client("sglang", hub), Client("vllm_omni", hub)
        for client in (sglang, omni):
            await client.open()
        (told,) = await sglang.say({"type": "event", "kind": "prompt", "payload": "sky", "event_id": name})
        assert (told["type"], "letters" in told["content"]) == ("error", True)
        (told,) = await omni.say({"type": "session.interaction", "interaction": {"event_id": name, "event": {"prompt": "sky"}}})
        assert (told["code"], "letters" in told["message"]) == ("interaction_failed", True)
        for client in (sglang, omni):
            client.talker.leave()

    with_hub(play)


def test_fields_that_ask_for_nothing_are_not_mentioned() -> None:
    fields = {"prompt": "sea", "type": "init", "profile": False, "negative_prompt": "", "lora": None, "quality": 95}
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
