"""Who goes where, who waits, who moves and how many replicas there are."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.unit.fleet.fleet_states import FleetStates


def test_whatever_people_and_machines_do_promises_positions_and_quotas_hold() -> None:
    run_state_machine_as_test(FleetStates, settings=settings(max_examples=60, stateful_step_count=50, deadline=None))
