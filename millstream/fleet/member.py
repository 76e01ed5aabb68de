"""A server as one of a fleet: who may come in, what it reports to the gateway, and what it does when the
gateway says so.

It is the ordinary server with a `Membership` (`fleet/membership.py`). It ends with its parent process: when
its standard input closes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from contextlib import suppress

import msgspec
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.types import Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

from millstream.core.client_messages import Ask
from millstream.core.errors import MillstreamError, NotAllowed, Overloaded, UnknownSession
from millstream.core.server_messages import MovedMessage
from millstream.fleet import link
from millstream.fleet.membership import Membership
from millstream.fleet.policy.types import FleetRequest
from millstream.fleet.tickets import LINK, SOCKET, TicketGate, issue
from millstream.server.access.auth import Access, Pass
from millstream.server.protocol.conversation import hello
from millstream.server.protocol.endpoints import ServerState, status_of
from millstream.server.protocol.messages import encode
from millstream.server.sessions.hub import SessionHub
from millstream.server.sessions.live_session import LiveSession
from millstream.server.sessions.viewers import Viewer
from millstream.server.transport.tasks import stop_all
from millstream.serving.admission_types import Request
from millstream.serving.notices import Live

REPORT_S = 0.5
LOOK_S = 0.05
"""How often it is looked whether a session came or went."""
HELD_S = 10.0
"""For the gateway to say what becomes of a session that stands still; then it goes on here."""


def access_by_ticket(member: Membership) -> Access:
    gate = TicketGate(member.secret, member.replica_id)

    def redeem(text: str, scope: Scope) -> Pass:
        method = SOCKET if scope["type"] == "websocket" else scope["method"]
        ticket = gate.redeem(text, time.time(), method, scope["path"])
        return Pass(member.key(ticket.key), ticket.session_id, ticket.right == "view", ticket.client)

    return Access(names=None, redeem=redeem)


def routes(member: Membership) -> tuple[BaseRoute, ...]:
    async def serve_link(websocket: WebSocket) -> None:
        await websocket.accept()
        await _Link(websocket, member).run()

    return (WebSocketRoute(LINK, serve_link),)


def end_with_parent() -> None:
    """Its parent process is gone, and so is the fleet's hold on it: its sessions come back elsewhere."""

    def watch() -> None:
        with suppress(OSError):
            sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=watch, name="millstream-parent", daemon=True).start()


class _Link:
    """One gateway's."""

    def __init__(self, websocket: WebSocket, member: Membership) -> None:
        self._websocket = websocket
        self._member = member
        self._server: ServerState = websocket.app.state.server
        self._hub: SessionHub = self._server.hub
        self._orders: set[asyncio.Task[None]] = set()
        self._handed_over: dict[str, asyncio.TimerHandle] = {}
        """Sessions that were handed over, until it is known what becomes of them."""

    async def run(self) -> None:
        reporter = asyncio.ensure_future(self._report())
        try:
            while True:
                order = link.to_replica.decode(await self._websocket.receive_bytes())
                task = asyncio.ensure_future(self._obey(order))
                self._orders.add(task)
                task.add_done_callback(self._orders.discard)
        except WebSocketDisconnect:
            pass
        finally:
            await stop_all([reporter])

    async def _report(self) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):
            while True:
                known = self._marks()
                await self._websocket.send_bytes(link.encode(report(self._server, self._member)))
                give_up = time.monotonic() + REPORT_S
                while time.monotonic() < give_up and self._marks() == known:
                    await asyncio.sleep(LOOK_S)

    def _marks(self) -> list[tuple[str, bool]]:
        return [(name, each.can_move) for name, each in self._hub.live_sessions.items()]

    async def _obey(self, order: link.AnyOrder) -> None:
        try:
            done = link.OrderDone(number=order.number, request=await self._do(order))
        except MillstreamError as error:
            done = link.OrderDone(number=order.number, error=str(error), code=status_of(error)[0])
        except msgspec.ValidationError as error:
            done = link.OrderDone(number=order.number, error=f"cannot read the message: {error}")
        with suppress(WebSocketDisconnect, RuntimeError):
            await self._websocket.send_bytes(link.encode(done))

    async def _do(self, order: link.AnyOrder) -> Request | None:
        match order:
            case link.Price(ask=fields, key=key):
                ask = msgspec.json.decode(fields, type=Ask)
                return self._hub.service.table.price(self._hub.request_asked(ask, self._member.key(key)))
            case link.FindKept(session_id=session_id, key=key):
                return self._hub.service.table.price(
                    await self._hub.restorer.find_kept(session_id, self._member.key(key))
                )
            case link.HandOverSession(session_id=session_id):
                await self._hand_over(self._of(session_id))
            case link.TakeOver():
                await self._take_over(order)
            case link.Release(session_id=session_id, url=url, replica_id=replica_id):
                self._cancel_timer(session_id)
                self._release(self._of(session_id), url, replica_id)
            case link.GiveUp(session_id=session_id):
                self._of(session_id).give_up()
            case link.TakeBack(session_id=session_id):
                self._cancel_timer(session_id)
                self._of(session_id).take_back()
        return None

    def _of(self, session_id: str) -> LiveSession:
        live_session = self._hub.live_sessions.get(session_id)
        if live_session is None or live_session.ended:
            raise UnknownSession("there is no such session; it may have ended")
        return live_session

    async def _hand_over(self, live_session: LiveSession) -> None:
        if not live_session.can_move:
            raise NotAllowed(
                "it is not live, is recorded, moves already, or is watched by a client that cannot follow"
            )
        await live_session.hand_over()
        loop = asyncio.get_running_loop()
        self._handed_over[live_session.session_id] = loop.call_later(HELD_S, live_session.take_back)

    def _cancel_timer(self, session_id: str) -> None:
        timer = self._handed_over.pop(session_id, None)
        if timer is not None:
            timer.cancel()

    async def _take_over(self, order: link.TakeOver) -> None:
        """The caller hears in time whether it is here: a session that comes later would be in two
        places."""
        try:
            await asyncio.wait_for(self._live(order), order.patience_s)
        except asyncio.TimeoutError:
            if order.session_id in self._hub.live_sessions:
                self._hub.live_sessions[order.session_id].give_up()
            raise Overloaded("the session was not given its place in time") from None

    async def _live(self, order: link.TakeOver) -> None:
        key = self._member.key(order.key)
        live_session = await self._hub.restorer.attach(order.session_id, key, yields=order.yields)
        while not isinstance(live_session.status, Live):
            if live_session.ended:
                raise Overloaded("the session was not given its place")
            await asyncio.sleep(LOOK_S / 5)

    def _release(self, live_session: LiveSession, url: str, replica_id: str) -> None:
        if not live_session.handoff.is_open:
            raise NotAllowed("it goes on here: the gateway did not say in time what becomes of it")

        def moved(viewer: Viewer) -> MovedMessage:
            ticket = issue(
                self._member.secret,
                right="own" if viewer.owner else "view",
                session_id=live_session.session_id if viewer.owner else live_session.view_id,
                replica_id=replica_id,
                key=live_session.key.name,
                now=time.time(),
            )
            return MovedMessage(url=url, ticket=ticket)

        live_session.move(moved)


def report(server: ServerState, member: Membership) -> link.Report:
    hub = server.hub
    service = server.hub.service
    status = service.status()
    return link.Report(
        pool=member.pool,
        node=member.node,
        version=member.version,
        room=status.room,
        trouble=service.trouble,
        chunk_s=list(status.chunk_s.items()),
        misses=hub.metrics.num_misses,
        promised=service.metrics().admission.promised or 0.0,
        sessions=[
            _session(each, status.asked[name])
            for name, each in hub.live_sessions.items()
            if name in status.asked
        ],
        hello=encode(hello(hub.card, server.limits)).encode(),
        pid=os.getpid(),
    )


def _session(live_session: LiveSession, asked: Request) -> link.SessionReport:
    info = live_session.last_chunk
    return link.SessionReport(
        asked=FleetRequest(request=asked, key=live_session.key.name),
        view_id=live_session.view_id,
        other_views=live_session.other_views,
        can_move=live_session.can_move,
        viewers=len(live_session.viewers),
        chunk=-1 if info is None else info.index,
    )
