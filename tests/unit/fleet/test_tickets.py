"""A ticket lets one in, once, for a while, where it was meant for."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.errors import NotAllowed
from millstream.fleet.tickets import LIFE_S, SKEW_S, TicketGate, issue

SECRET = bytes(range(32))


def a_ticket(now: float = 1000.0, *, secret: bytes = SECRET, replica: str = "r1") -> str:
    return issue(secret, session_id="s1", replica_id=replica, key="team", now=now)


def test_a_ticket_says_who_it_is_for_and_is_good_once() -> None:
    gate, ticket = TicketGate(SECRET, "r1"), a_ticket()
    redeemed = gate.redeem(ticket, 1001.0)
    assert (redeemed.session_id, redeemed.key) == ("s1", "team")
    with pytest.raises(NotAllowed, match="used already"):
        gate.redeem(ticket, 1002.0)


@pytest.mark.parametrize("apart_s", [-SKEW_S, 0.0, SKEW_S])
def test_clocks_may_be_a_minute_apart_and_still_nobody_comes_twice(apart_s: float) -> None:
    gate, ticket = TicketGate(SECRET, "r1"), a_ticket()
    gate.redeem(ticket, 1000.0 + apart_s)
    for later in range(0, int(LIFE_S + 3 * SKEW_S), 5):
        with pytest.raises(NotAllowed, match=r"used already|expired"):
            gate.redeem(ticket, 1000.0 + apart_s + later)


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
        TicketGate(SECRET, "r1").redeem(ticket, 1000.0)
    assert "\n" not in str(refused.value)


@settings(max_examples=100)
@given(st.data())
def test_no_changed_ticket_is_taken(data: st.DataObject) -> None:
    ticket = a_ticket()
    at = data.draw(st.integers(0, len(ticket) - 1))
    letter = data.draw(st.characters(codec="ascii").filter(lambda letter: letter != ticket[at]))
    with pytest.raises(NotAllowed):
        TicketGate(SECRET, "r1").redeem(ticket[:at] + letter + ticket[at + 1 :], 1000.0)


def test_what_is_signed_is_what_is_read() -> None:
    body, _, signature = a_ticket().partition(".")
    other = base64.urlsafe_b64encode(base64.urlsafe_b64decode(body + "==").replace(b"s1", b"s2")).decode().rstrip("=")
    with pytest.raises(NotAllowed, match="not a ticket"):
        TicketGate(SECRET, "r1").redeem(f"{other}.{signature}", 1000.0)


def test_used_tickets_are_forgotten_once_they_are_refused_anyway() -> None:
    gate = TicketGate(SECRET, "r1")
    for second in range(0, 1000, 10):
        gate.redeem(a_ticket(float(second)), float(second))
    assert len(gate._used) <= 1 + (LIFE_S + SKEW_S) / 10
