"""OSC to controls: `/millstream/noise_scale 0.5` from a desk, a phone or a patch steers a session.

Which addresses there are follows from `core/controls.py`: a control's type, then its fields in order. Whoever
can send here may steer, so it listens on this machine unless another address was named, and there a session
is steered by its id alone. A flood is bounded: so many messages are read at a time, the newest of each
address counts, and what the kernel cannot hold meanwhile is lost. A control takes the place of the last one
of its address that still waits, so a chunk sees one of each.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, cast, get_args

import msgspec
from msgspec import inspect

from millstream.core.client_messages import ProtocolError
from millstream.core.controls import AnyControl, Control, Receipt
from millstream.core.errors import ConfigError, MillstreamError
from millstream.core.keys import NAMELESS
from millstream.core.undo import undone_by
from millstream.server.access.auth import is_local
from millstream.server.access.limits import ClientLimits, TokenBucket
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.live_session import LiveSession
from millstream.server.transport import osc

log = logging.getLogger(__name__)

ROOT = "millstream"
WHOLE = "control"
"""The address of any control, written out as the native protocol has it."""
CYCLE_S = 0.02
"""Seconds from one reading to the next."""
MAX_PER_CYCLE = 512
"""Most packets read in a cycle; a large one counts as several."""
PACKET_BYTES = 64
"""Bytes below which a packet counts as one."""
MAX_ADDRESSES = 256
"""Most addresses that wait to be read, and most controls whose receipts are owed."""
MAX_BYTES = 65_536
BUFFER_BYTES = 2**20
ANSWERS_PER_S = 100.0
WARN_S = 60.0
"""The log has one line of refusals in so long."""

KINDS: dict[str, type[Control]] = {kind.__struct_config__.tag: kind for kind in get_args(AnyControl)}
SCALARS = (inspect.StrType, inspect.IntType, inspect.FloatType, inspect.LiteralType)
Sender = tuple[Any, ...]
_About = tuple[str, type[Control]]
"""An address, and what it asked for."""


class OscPort(NamedTuple):
    socket: socket.socket
    is_open: bool
    """True if a message that names no session steers the newest one."""


class _Heard(NamedTuple):
    """Newest message of an address."""

    data: bytes
    sender: Sender


class _Owed(NamedTuple):
    """A control whose `applied` its sender has not heard."""

    live_session: LiveSession
    queued: Receipt
    sender: Sender

    @property
    def receipt(self) -> Receipt | None:
        """The last of its receipts. One of an earlier chunk is that of a control before it, which had the
        same id."""
        receipt = self.live_session.receipts.find(self.queued.control_id)
        is_older = receipt is not None and receipt.chunk_index < self.queued.chunk_index
        return self.queued if is_older else receipt


def bind_osc(place: str, *, insecure: bool) -> OscPort:
    """PORT, or HOST:PORT. Raises what is wrong with it."""
    host, _, port = place.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--osc takes a UDP port such as 9000, or HOST:PORT, got {place!r}")
    try:
        family, kind, *_, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        bound = socket.socket(family, kind)
        with undone_by(bound.close):
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            bound.setblocking(False)
            bound.bind(address)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on --osc {place}: {error.strerror}; choose another port or address"
        ) from None
    return OscPort(bound, insecure or is_local(host))


class _Field(NamedTuple):
    """Field that a message may have behind its address."""

    name: str
    is_whole: bool
    """True if it is a whole number."""
    takes_all: bool
    """True if every argument belongs to it."""


@cache
def fields_of(name: str) -> tuple[_Field, ...]:
    """Return the fields of a control in order: all but its id and those that have fields of their own."""
    found = list[_Field]()
    for each in msgspec.structs.fields(KINDS[name]):
        kind = inspect.type_info(each.type)
        is_list = isinstance(kind, inspect.VarTupleType)
        item = kind.item_type if isinstance(kind, inspect.VarTupleType) else kind
        if each.name != "id" and isinstance(item, SCALARS):
            found.append(_Field(each.name, isinstance(item, inspect.IntType), is_list))
    return tuple(found)


def control_of(name: str, given: Sequence[osc.Argument]) -> AnyControl | None:
    """Return the control that a message asks for; None: a button was let go. Raises what is wrong with it."""
    try:
        if name == WHOLE and len(given) == 1 and isinstance(given[0], str):
            data = given[0].encode("utf-8", "surrogatepass")
            ClientLimits().check_json(data)
            return cast(AnyControl, msgspec.json.decode(data, type=AnyControl))
        if name not in KINDS:
            raise ProtocolError(
                "not_found", f"the controls are {', '.join(KINDS)}, and {WHOLE} with one as JSON"
            )
        fields = fields_of(name)
        if not fields and len(given) == 1 and not given[0]:
            return None
        return cast(AnyControl, msgspec.convert({"type": name, **_values(name, fields, given)}, AnyControl))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProtocolError("bad_control", f"cannot read {name}: {str(error)[:200]}") from None


def _values(name: str, fields: Sequence[_Field], given: Sequence[osc.Argument]) -> dict[str, Any]:
    if fields and fields[0].takes_all:
        return {fields[0].name: given}
    if len(given) > max(len(fields), 1):
        raise ProtocolError(
            "bad_control", f"{name} takes {' '.join(each.name for each in fields) or 'nothing'}, and no more"
        )
    return {
        each.name: _rounded(value) if each.is_whole else value
        for each, value in zip(fields, given, strict=False)
    }


def _rounded(value: osc.Argument) -> osc.Argument:
    """Faders know no whole numbers."""
    return round(value) if isinstance(value, float) and math.isfinite(value) else value


@dataclass(slots=True)
class OscListener:
    """Make it and `run` it on the event loop, until it is cancelled."""

    port: OscPort
    hub: SessionHub
    _heard: dict[str, _Heard] = field(default_factory=dict)
    _owed: dict[_About, _Owed] = field(default_factory=dict)
    _count: int = 0
    _answers: TokenBucket = field(default_factory=lambda: TokenBucket(ANSWERS_PER_S, 2 * ANSWERS_PER_S))
    _warnings: TokenBucket = field(default_factory=lambda: TokenBucket(1 / WARN_S, 1))

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                with suppress(asyncio.TimeoutError, OSError):
                    first = loop.sock_recvfrom(self.port.socket, MAX_BYTES)
                    self._read(*await asyncio.wait_for(first, CYCLE_S if self._owed else None))
                await self._steer()
                self._tell_applied()
                await asyncio.sleep(CYCLE_S)  # what comes meanwhile waits in the kernel's buffer
        except Exception:
            log.exception("OSC has failed and is not heard any more; all else goes on")
        finally:
            self.port.socket.close()

    def _read(self, packet: bytes, sender: Sender) -> None:
        """This one and all that wait with it, up to the bound."""
        left = MAX_PER_CYCLE
        with suppress(OSError):  # nothing waits any more
            while left > 0:
                left -= 1 + len(packet) // PACKET_BYTES
                self._hear(packet, sender)
                packet, sender = self.port.socket.recvfrom(MAX_BYTES)
            self._warn(
                "more OSC comes than is read: %s; of each address the newest that is read counts", sender[0]
            )

    def _hear(self, packet: bytes, sender: Sender) -> None:
        try:
            found = osc.messages(packet)
        except ProtocolError as error:
            self._refuse("", sender, error)
            return
        for address, data in found:
            self._heard.pop(address, None)  # its turn is that of the newest
            if len(self._heard) < MAX_ADDRESSES:
                self._heard[address] = _Heard(data, sender)

    async def _steer(self) -> None:
        heard = self._heard
        self._heard = {}
        for address, (data, sender) in heard.items():
            try:
                await self._control(address, data, sender)
            except MillstreamError as error:
                self._refuse(address, sender, error)

    async def _control(self, address: str, data: bytes, sender: Sender) -> None:
        root, *names = address[1:].split("/")
        if root != ROOT or len(names) not in (1, 2):
            raise ProtocolError("bad_message", f"addresses are /{ROOT}/CONTROL and /{ROOT}/SESSION/CONTROL")
        control = control_of(names[-1], osc.arguments(data))
        if control is None:
            return
        live_session = self.hub.live_sessions.find(names[0]) if len(names) == 2 else self._newest()
        if await live_session.handoff.has_left():
            raise ProtocolError("not_found", "the session has moved to another server")
        about = address, type(control)
        named = msgspec.structs.replace(control, id=self._id(about, live_session))
        receipt = await live_session.control(named)
        if len(self._owed) < MAX_ADDRESSES:
            self._owed[about] = _Owed(live_session, receipt, sender)
        self._answer(sender, "receipt", address, receipt.state, receipt.chunk_index)

    def _newest(self) -> LiveSession:
        if not self.port.is_open:
            raise ProtocolError("not_found", f"name the session: /{ROOT}/SESSION/CONTROL")
        sessions = self.hub.live_sessions.of_key(NAMELESS)
        if not sessions:
            raise ProtocolError("not_found", "no session is there to steer; start one")
        return sessions[-1]

    def _id(self, about: _About, live_session: LiveSession) -> str:
        """That of the last one of this address while it waits: the new one takes its place."""
        owed = self._owed.get(about)
        if owed is not None and owed.live_session is live_session:
            return owed.queued.control_id
        self._count += 1
        return f"osc-{about[1].__struct_config__.tag}-{self._count}"

    def _tell_applied(self) -> None:
        for about, owed in list(self._owed.items()):
            receipt = owed.receipt
            if receipt is not None and receipt.state == "applied":
                self._answer(owed.sender, "receipt", about[0], receipt.state, receipt.chunk_index)
            elif receipt is not None and not owed.live_session.ended:
                continue
            del self._owed[about]

    def _refuse(self, address: str, sender: Sender, error: MillstreamError) -> None:
        self._answer(sender, "error", address, str(error))
        name = address.rpartition("/")[2][:40]  # without the session: its id is a secret
        self._warn("OSC refused: %s; others may have been", f"{name!r} from {sender[0]}: {error}")

    def _answer(self, sender: Sender, kind: str, *told: int | str) -> None:
        if self._answers.try_spend():
            with suppress(OSError):  # nobody has to listen
                self.port.socket.sendto(osc.message(f"/{ROOT}/{kind}", *told), sender)

    def _warn(self, words: str, about: object) -> None:
        if self._warnings.try_spend():
            log.warning(words, about)
