"""The line between front and leader: everything arrives, nobody waits for somebody who is gone, strangers are
sent away."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.errors import MeshError, MeshLost
from millstream.wire.framing import memory_of
from millstream.wire.line import READ_BYTES, Line
from millstream.wire.pairing import HERE, FrontListener, call

PATIENCE_S = 20.0
MUCH = torch.arange(2**23, dtype=torch.int64).view(torch.uint8)
"""More than sockets hold on the way."""


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server((HERE, 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


@pytest.fixture
def ends() -> Iterator[tuple[Line, Line]]:
    front, leader = (Line(end) for end in connected())
    yield front, leader
    front.close()
    leader.close()


@pytest.fixture
def door() -> Iterator[FrontListener]:
    opened = FrontListener(HERE)
    yield opened
    opened.close()


def test_two_who_both_have_much_to_say_do_not_wait_for_each_other_if_one_also_listens(
    ends: tuple[Line, Line],
) -> None:
    front, leader = ends
    heard = {end: torch.empty_like(MUCH) for end in ends}

    def answer() -> None:
        leader.send(memory_of(MUCH))
        leader.receive(memory_of(heard[leader]), what="tensor")

    def speak() -> None:
        front.send(memory_of(MUCH[:9]), memory_of(MUCH[9:]))

    threads = [threading.Thread(target=speak), threading.Thread(target=answer)]
    for thread in threads:
        thread.start()
    front.receive(memory_of(heard[front]), what="tensor")
    for thread in threads:
        thread.join(PATIENCE_S)
    assert all(torch.equal(found, MUCH) for found in heard.values())


@given(
    st.lists(
        st.lists(
            st.sampled_from([1, 32, 700, READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 50_000]), min_size=1
        ),
        max_size=4,
    )
)
@settings(max_examples=40, deadline=None)
def test_parts_arrive_in_order_whichever_leave_together(messages: list[list[int]]) -> None:
    front, leader = (Line(end) for end in connected())
    sent = [
        [memory_of(MUCH[number : number + size]) for number, size in enumerate(sizes)] for sizes in messages
    ]
    sender = threading.Thread(target=lambda: [front.send(*parts) for parts in sent])
    sender.start()
    for data in itertools.chain(*sent):
        found = bytearray(len(data))
        leader.receive(memoryview(found), what="part")
        assert found == data
    sender.join()
    front.close()
    leader.close()


@pytest.mark.parametrize("who", [0, 1])
def test_whoever_waits_on_a_line_learns_that_it_is_over(ends: tuple[Line, Line], who: int) -> None:
    waiting = ends[0]
    learned = list[type[BaseException]]()

    def wait() -> None:
        try:
            waiting.receive(memoryview(bytearray(1)), what="header")
        except ConnectionError as error:
            learned.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    ends[who].hang_up()
    thread.join(PATIENCE_S)
    assert learned == [ConnectionResetError]


def test_what_cannot_leave_any_more_says_so(ends: tuple[Line, Line]) -> None:
    front, leader = ends
    leader.close()
    with pytest.raises(ConnectionError):
        front.send(memory_of(MUCH))


def test_strangers_are_sent_away_and_the_leader_is_let_in(door: FrontListener) -> None:
    stranger = call(replace(door.way, word="0" * len(door.way.word)), PATIENCE_S)
    silent = socket.create_connection((HERE, door.way.port))
    leader = call(door.way, PATIENCE_S)
    front = door.admit(PATIENCE_S)
    heard = torch.empty(1, dtype=torch.uint8)
    leader.send(b"\x07")
    front.receive(memory_of(heard), what="header")
    assert heard.item() == 7
    with pytest.raises(ConnectionResetError):
        stranger.receive(memoryview(bytearray(1)), what="header")
    silent.close()
    for line in (stranger, leader, front):
        line.close()


def test_a_door_that_is_shut_is_not_waited_at(door: FrontListener) -> None:
    shutting = threading.Timer(0.05, door.shut)
    shutting.start()
    with pytest.raises(MeshLost, match="was shut"):
        door.admit(PATIENCE_S)
    shutting.join()


def test_a_leader_that_finds_nobody_says_where_it_looked() -> None:
    door = FrontListener(HERE)
    door.close()
    with pytest.raises(MeshError, match=f"the front does not answer at {HERE}:{door.way.port}"):
        call(door.way, PATIENCE_S)
