"""The states of a session: the ways between them, the steps that once ended an engine, and random steps
without end."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from millstream.serving.notices import Ended
from millstream.serving.session_life import LEADS_TO, SessionLife
from tests.unit.session_states import SessionStates


def test_every_state_but_the_last_can_end_and_the_last_leads_nowhere() -> None:
    assert all("ended" in ways for state, ways in LEADS_TO.items() if state != "ended")
    assert LEADS_TO["ended"] == frozenset()


def test_a_way_that_is_not_there_is_not_taken() -> None:
    life = SessionLife()
    life.become("waiting")
    with pytest.raises(AssertionError, match="from waiting to parked"):
        life.become("parked")


def test_one_in_line_who_turns_out_never_to_fit_is_told_so_and_harms_nobody() -> None:
    """Three ordinary sessions: a large one, a small one, and one that waits for what no device keeps. Then
    the second goes."""
    states = SessionStates()
    states.engine.chunk_s = 0.5
    large = states.open(256, 1.0, "asked", False, False, None, "run")
    states.work(2)
    small = states.open(16, 1.0, "asked", False, False, None, "run")
    greedy = states.open(16, 240.0, "strict", True, False, None, "run")
    assert states.table.entries[greedy].life.state == "waiting"
    states.clock.now += 5.0
    states.work(6)
    states.end(small)
    states.work(3)
    assert isinstance(states.told[greedy][-1], Ended)
    assert states.table.entries[large].life.state == "placed"
    states.everybody_counts_the_same()
    states.teardown()


def test_whatever_people_and_the_device_do_states_hold() -> None:
    run_state_machine_as_test(SessionStates, settings=settings(max_examples=60, stateful_step_count=50))
