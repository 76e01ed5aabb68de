"""Mutated messages and requests over every protocol, so many and no more, and what the server made of them.

Workers share one budget. Each goes about as one client after another, from an address of its own, below the
rates that the server grants one client, so that nearly everything is read and not just refused.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass
from itertools import count

import msgspec

from tests.soak.abuses.frames import BINARY, TEXT, RawSocket, Turned
from tests.soak.abuses.phrases import PROTOCOLS, Protocol
from tests.soak.abuses.requests import Guest
from tests.soak.abuses.tally import CallCount
from tests.soak.abuses.target import Target

TALKERS = 32
GUESTS = 12
SIGNALLERS = 4
"""Workers at sockets, at REST, at WebRTC's signalling."""
BATCH = 36
BATCH_S = 0.85
"""Messages between two questions, and how long they take at least: a client may say 50 a second."""
BATCHES = 4
"""On one connection."""
QUESTION_S = 20.0
NO_TEXT = 0.003
"""Share of text messages that are no text: the connection is over then."""
words = count(100_000_007)


@dataclass(slots=True)
class Budget:
    left: int
    until: float
    """`time.monotonic` after which nothing more is sent."""

    def spend(self, wanted: int) -> int:
        granted = min(wanted, self.left) if time.monotonic() < self.until else 0
        self.left -= granted
        return granted


async def run_campaign(target: Target, *, mutations: int, seed: int, limit_s: float) -> CallCount:
    """All of them, unless time is up before, or the server no longer answers."""
    tally = CallCount()
    budget = Budget(mutations, time.monotonic() + limit_s)
    share = mutations // 100

    async def talk(number: int) -> None:
        chance = random.Random(f"{seed}/talker/{number}")
        while not tally.hopeless and (size := budget.spend(BATCH * BATCHES)):
            sent = await _converse(target, PROTOCOLS[number % len(PROTOCOLS)], size, tally, chance)
            budget.left += size - sent

    async def visit(number: int, kind: str, mine: Budget) -> None:
        guest = Guest(target, kind, random.Random(f"{seed}/{kind}/{number}"), tally)
        while not tally.hopeless and (size := mine.spend(BATCH)):
            await guest.visit(size)

    rest = Budget(15 * share, budget.until)
    signalling = Budget(3 * share, budget.until)
    budget.left -= rest.left + signalling.left
    await asyncio.gather(
        *(talk(number) for number in range(min(TALKERS, 1 + mutations // BATCH))),
        *(visit(number, "rest", rest) for number in range(GUESTS)),
        *(visit(number, "webrtc", signalling) for number in range(SIGNALLERS)),
    )
    return tally


async def _converse(
    target: Target, protocol: Protocol, size: int, tally: CallCount, chance: random.Random
) -> int:
    """One connection from its beginning to its end, by whoever's fault; how many messages went over it."""
    try:
        socket = await RawSocket.open(target, protocol.path, source=target.source(chance))
    except Turned as turned:
        tally.answered(str(turned.status), f"{protocol.name}: handshake")
        await asyncio.sleep(BATCH_S)
        return 0
    except OSError as error:
        tally.silence(f"{protocol.name}: no connection: {error}")
        await asyncio.sleep(BATCH_S)
        return 0
    sent = 0
    talk = _Talk(socket, protocol, tally, chance)
    try:
        if chance.random() < 0.7:
            socket.send(protocol.encode(protocol.opening))
        going = True
        while going and sent < size:
            going = await talk.batch(min(size - sent, BATCH))
            sent += min(size - sent, BATCH)
        if protocol.closing is not None:
            socket.send(protocol.encode(protocol.closing))
            await asyncio.sleep(0.05)
    finally:
        socket.vanish()
    return sent


@dataclass(slots=True)
class _Talk:
    socket: RawSocket
    protocol: Protocol
    tally: CallCount
    chance: random.Random

    async def batch(self, size: int) -> bool:
        """So many messages and a question; whether the connection is still there for more."""
        begun = time.monotonic()
        word = str(next(words))
        said = [self.protocol.mutated(self.chance) for _ in range(size)]
        self.tally.sent[self.protocol.name] += size
        about = f"{self.protocol.name}: one of {[each[:60] for each in said]}"
        try:
            for each in said:
                self.socket.send(
                    self._no_text(each) if isinstance(each, str) else each,
                    None if isinstance(each, bytes) else TEXT,
                )
            await self.socket.drain()
            answered = await self._question(word, about)
        except ConnectionError:
            answered = False
        if self.socket.close_code is not None:
            self.tally.answered(str(self.socket.close_code), about)
            self.tally.lost += size
        await asyncio.sleep(max(0.0, begun + BATCH_S - time.monotonic()))
        return answered and self.socket.close_code is None

    def _no_text(self, text: str) -> bytes:
        data = text.encode("utf-8", "surrogatepass")
        return data + b"\xff" if self.chance.random() < NO_TEXT else data

    async def _question(self, word: str, about: str) -> bool:
        """Ask a question and return whether it was answered; ask again where it was refused for its rate."""
        patience = time.monotonic() + QUESTION_S
        while time.monotonic() < patience:
            for fields in self.protocol.question(word):
                self.socket.send(self.protocol.encode(fields))
            try:
                return await asyncio.wait_for(self._heard(word, about), 2 * BATCH_S)
            except asyncio.TimeoutError:
                continue
        self.tally.silence(about)
        return False

    async def _heard(self, word: str, about: str) -> bool:
        """Return whether an answer with the word in it came before the connection ended."""
        while (heard := await self.socket.hear()) is not None:
            opcode, payload = heard
            code = _error_code(opcode, payload)
            if word.encode() in payload:
                return True
            if code:
                self.tally.answered(code, about)
        return False


def _error_code(opcode: int, payload: bytes) -> str:
    """Return the code of an error message in any protocol; empty for other messages."""
    if b"error" not in payload[:64]:
        return ""
    try:
        fields = msgspec.msgpack.decode(payload) if opcode == BINARY else json.loads(payload)
    except (msgspec.MsgspecError, ValueError):
        return ""
    return str(fields.get("code", "")) if isinstance(fields, dict) else ""
