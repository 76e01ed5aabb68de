"""One scripted person: connects, asks for a session, watches, acts, leaves. One coroutine; it reads while it
waits between acts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from millstream.client.chunk import ClientChunk
from millstream.client.connection import Connection
from millstream.client.reading import Heard
from millstream.core.client_messages import VERSION, Attach, End, Start, Steer
from millstream.core.controls import AnyControl, Pause, Resume
from millstream.core.errors import ProtocolBroken
from millstream.core.examples import EXAMPLES
from millstream.core.server_messages import EndedMessage, ErrorMessage, Hello, LiveMessage, ReceiptMessage
from millstream.load.loopback import open_here
from millstream.load.record import LoadRecord
from millstream.load.script import Act, Behaviour, Idle, Leave, Rest, ScriptedChange, SendGarbage, acts

ANSWER_S = 15.0
"""Seconds to wait for a server's answer."""
SHOWING = 2
"""Acts end so many times the promise before the end of the visit, so that the last control can still show."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """Settings that all people of a run have in common."""

    url: str
    temper: Behaviour
    fps: float | None
    """None: what the server chooses."""
    size: str | None = None
    """None: as the server has it."""
    seed: int
    until: float
    """`time.monotonic` when they all leave."""


class Person:
    def __init__(self, visit: Visit, number: int) -> None:
        self.record = LoadRecord(number)
        self._visit = visit
        self._number = number
        self._session = ""
        self._prompts: Sequence[str] = ()
        self._connection: Connection
        self._controls = 0
        self._pausing = ""
        """The id of the pause under way."""

    async def live(self) -> LoadRecord:
        """The whole visit. Whatever the server does wrong ends up in the record."""
        try:
            self.record.connecting(time.monotonic())
            await self._connect()
            try:
                if await self._enter():
                    await self._play()
                    await self._go()
            finally:
                await self._connection.close()
        except ProtocolBroken as error:
            self.record.failed(str(error))
            self.record.clock.halt(time.monotonic())
        return self.record

    async def _enter(self) -> bool:
        """Ask for a session, and return whether there was room."""
        asked = time.monotonic()
        prompts = self._prompts or EXAMPLES
        await self._connection.say(
            Start(
                version=VERSION,
                prompt=prompts[self._number % len(prompts)],
                fps="auto" if self._visit.fps is None else self._visit.fps,
                strict=self._visit.fps is not None,
                size=self._visit.size,
                seed=self._visit.seed + self._number,
                formats=self._visit.temper.formats,
                wait=False,
            )
        )
        answer = await self._expect(
            lambda heard: isinstance(heard, (LiveMessage, ErrorMessage, EndedMessage)), "start"
        )
        if isinstance(answer, ErrorMessage) and answer.code == "refused":
            self.record.refused(answer.message, time.monotonic() - asked)
            return False
        if not isinstance(answer, LiveMessage):
            raise ProtocolBroken(f"start was answered by {answer}")
        return True

    async def _play(self) -> None:
        """Think, act, think, act; then watch long enough for the last control to show."""
        for think_s, act in acts(
            self._visit.temper, self._prompts, seed=self._visit.seed, person=self._number
        ):
            await self._watch(min(time.monotonic() + think_s, self._visit.until))
            if time.monotonic() >= self._visit.until - SHOWING * self.record.promise_s:
                break
            await self._perform(act)
        await self._watch(self._visit.until)

    async def _perform(self, act: Act) -> None:
        match act:
            case ScriptedChange(control=control):
                self.record.steered(await self._steer(control), time.monotonic())
            case Rest(seconds=seconds):
                await self._rest(seconds)
            case Leave():
                await self._leave(act)
            case Idle(seconds=seconds):
                self.record.go_away(time.monotonic())
                await asyncio.sleep(seconds)
            case SendGarbage(text=text):
                self.record.babbled()
                await self._connection.say_text(text)

    async def _steer(self, control: AnyControl) -> str:
        self._controls += 1
        control_id = f"{self._number}-{self._controls}"
        await self._connection.say(Steer(control=msgspec.structs.replace(control, id=control_id)))
        return control_id

    async def _rest(self, seconds: float) -> None:
        self.record.interrupt()
        self._pausing = await self._steer(Pause())
        await self._watch(time.monotonic() + seconds)
        self._pausing = ""
        await self._steer(Resume())
        self.record.clock.proceed(time.monotonic())

    async def _leave(self, act: Leave) -> None:
        self.record.go_away(time.monotonic())
        await (self._connection.vanish() if act.abruptly else self._connection.close())
        await asyncio.sleep(act.seconds)
        self.record.come_back(time.monotonic())
        self.record.reconnects += 1
        await self._connect()
        await self._connection.say(
            Attach(version=VERSION, session=self._session, formats=self._visit.temper.formats)
        )
        answer = await self._expect(
            lambda heard: isinstance(heard, (LiveMessage, ErrorMessage, EndedMessage)), "attach"
        )
        if not isinstance(answer, LiveMessage):
            raise ProtocolBroken(f"attach was answered by {answer}")

    async def _go(self) -> None:
        """End the session. This is not measured."""
        self.record.clock.halt(time.monotonic())
        await self._connection.say(End())
        await self._expect(lambda heard: isinstance(heard, EndedMessage), "stop")

    async def _connect(self) -> None:
        self._connection = await open_here(self._visit.url, small_buffers=self._visit.temper.small_buffers)
        await self._expect(lambda heard: isinstance(heard, Hello), "connection")

    async def _watch(self, until: float) -> None:
        while (heard := await self._connection.hear(until)) is not None:
            self._handle(heard)
            if isinstance(heard, EndedMessage):
                raise ProtocolBroken(f"the session ended unasked: {heard.cause}, {heard.reason}")

    async def _expect(self, wanted: Callable[[Heard], bool], what: str) -> Heard:
        """Take in everything until the wanted answer has come."""
        patience = time.monotonic() + ANSWER_S
        while (heard := await self._connection.hear(patience)) is not None:
            if wanted(heard):
                if not isinstance(heard, (ErrorMessage, EndedMessage)):
                    self._handle(heard)
                return heard
            self._handle(heard)
        raise ProtocolBroken(f"no answer to {what} within {ANSWER_S:g} s")

    def _handle(self, heard: Heard) -> None:
        match heard:
            case ClientChunk(header=header):
                self.record.chunk(header, time.monotonic())
            case ReceiptMessage(control_id=control_id, state="applied") if control_id == self._pausing:
                self.record.clock.halt(time.monotonic())
            case ErrorMessage(code=code, message=message):
                self.record.rebuked(f"{code}: {message}")
            case Hello(examples=examples):
                self._prompts = examples
            case LiveMessage(session=session, config=config):
                self._session = session
                self.record.told_lead_s = config.get("lead_s")
            case _:
                pass
