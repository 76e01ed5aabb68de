"""A ticket lets one in, once, for a while, where it was meant for."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.errors import NotAllowed
from millstream.fleet.tickets import (
    LIFE_S,
    LINK,
    SKEW_S,
    SOCKET,
    STREAM,
    Right,
    Ticket,
    TicketGate,
    issue,
    request_digest,
)

SECRET = bytes(range(32))


def a_ticket(now: float = 1000.0, *, secret: bytes = SECRET, replica: str = "r1", **changes: Any) -> str:
    told: dict[str, Any] = dict(right="own", session_id="s1", replica_id=replica, key="team", now=now)
    return issue(secret, **told | changes)


def redeem(gate: TicketGate, text: str, now: float, method: str = SOCKET, path: str = STREAM) -> Ticket:
    return gate.redeem(text, now, method, path)


def test_a_ticket_says_who_it_is_for_and_is_good_once() -> None:
    gate = TicketGate(SECRET, "r1")
    ticket = a_ticket()
    redeemed = redeem(gate, ticket, 1001.0)
    assert (redeemed.session_id, redeemed.key) == ("s1", "team")
    with pytest.raises(NotAllowed, match="used already"):
        redeem(gate, ticket, 1002.0)


@pytest.mark.parametrize("apart_s", [-SKEW_S, 0.0, SKEW_S])
def test_clocks_may_be_a_minute_apart_and_still_nobody_comes_twice(apart_s: float) -> None:
    gate = TicketGate(SECRET, "r1")
    ticket = a_ticket()
    redeem(gate, ticket, 1000.0 + apart_s)
    for later in range(0, int(LIFE_S + 3 * SKEW_S), 5):
        with pytest.raises(NotAllowed, match=r"used already|expired"):
            redeem(gate, ticket, 1000.0 + apart_s + later)


@pytest.mark.parametrize(
    ("ticket", "said"),
    [
        (a_ticket(secret=SECRET[::-1]), "not a ticket of this fleet"),
        (a_ticket(replica="r2"), "for another replica"),
        (a_ticket(1000.0 - LIFE_S - SKEW_S - 1), "expired 61 s ago; ask the gateway for another"),
        (a_ticket(1000.0 + SKEW_S + 1), "from 61 s ahead: set the clocks"),
        ("", "not a ticket"),
        ("é.é", "not a ticket"),
        ("x" * 10_000, "not a ticket"),
    ],
)
def test_whoever_is_not_let_in_is_told_in_one_line(ticket: str, said: str) -> None:
    with pytest.raises(NotAllowed, match=said) as refused:
        redeem(TicketGate(SECRET, "r1"), ticket, 1000.0)
    assert "\n" not in str(refused.value)


@settings(max_examples=100)
@given(st.data())
def test_no_changed_ticket_is_taken(data: st.DataObject) -> None:
    ticket = a_ticket()
    at = data.draw(st.integers(0, len(ticket) - 1))
    letter = data.draw(st.characters(codec="ascii").filter(lambda letter: letter != ticket[at]))
    with pytest.raises(NotAllowed):
        redeem(TicketGate(SECRET, "r1"), ticket[:at] + letter + ticket[at + 1 :], 1000.0)


def test_what_is_signed_is_what_is_read() -> None:
    body, _, signature = a_ticket().partition(".")
    other = (
        base64.urlsafe_b64encode(base64.urlsafe_b64decode(body + "==").replace(b"s1", b"s2"))
        .decode()
        .rstrip("=")
    )
    with pytest.raises(NotAllowed, match="not a ticket"):
        redeem(TicketGate(SECRET, "r1"), f"{other}.{signature}", 1000.0)


def test_used_tickets_are_forgotten_once_they_are_refused_anyway() -> None:
    gate = TicketGate(SECRET, "r1")
    for second in range(0, 1000, 10):
        redeem(gate, a_ticket(float(second)), float(second))
    assert len(gate._used) <= 1 + (LIFE_S + SKEW_S) / 10


HERE = "/v1/sessions/s1"
VIEW = "/v1/views/s1/live.m3u8"
LETS: dict[Right, set[tuple[str, str]]] = {
    "own": {
        (SOCKET, STREAM), (SOCKET, "/v1/realtime/video"), ("POST", "/v1/sessions"), ("POST", "/v1/webrtc/offer"),
        ("POST", "/v1/videos"), ("DELETE", HERE), ("POST", f"{HERE}/controls"),
    },
    "view": {(SOCKET, STREAM), ("POST", "/v1/webrtc/offer"), ("GET", VIEW)},
    "request": {("DELETE", HERE)},
    "link": {(SOCKET, LINK)},
}  # fmt: skip
ASKED = set().union(*LETS.values()) | {
    ("GET", "/v1/sessions"), ("DELETE", "/v1/sessions/s12"), ("GET", "/v1/snapshots/any"), ("GET", "/v1/views/s12/live.m3u8"),
    ("POST", VIEW), ("GET", "/metrics"), ("GET", HERE), (SOCKET, "/session/me"),
}  # fmt: skip


@pytest.mark.parametrize("right", LETS)
def test_a_ticket_lets_in_what_its_right_names_and_nothing_else(right: Right) -> None:
    digest = request_digest("DELETE", HERE) if right == "request" else ""
    for asked in ASKED:
        ticket = a_ticket(right=right, request=digest)
        lets = asked in LETS[right] or (right == "own" and asked in {("GET", HERE), (SOCKET, "/session/me")})
        if lets:
            assert redeem(TicketGate(SECRET, "r1"), ticket, 1000.0, *asked).right == right
        else:
            with pytest.raises(NotAllowed, match="not for this request"):
                redeem(TicketGate(SECRET, "r1"), ticket, 1000.0, *asked)
