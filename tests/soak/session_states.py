"""Random people and a random device around a service, for as many steps as asked: no assertion, no session
without an end.

    python -m tests.soak.session_states --steps 100000

The machine is the one that `tests/unit/serving/test_session_states.py` runs for a few seconds. The states
that sessions were seen in and the ways that they took between them are counted, so that a run which never
parks anybody does not pass for one that did.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from millstream.serving.session_life import LEADS_TO, SessionLife, State
from tests.soak.report import write_report
from tests.unit.session_states import SessionStates

STEPS_A_RUN = 50


def main() -> None:
    logging.disable()  # sessions fail on purpose
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    asked = parser.parse_args()
    seen = Counter[str]()
    steps = 0
    endings = Counter[str]()
    ways = Counter(
        {
            f"{state} to {following}": 0
            for state, leads_to in LEADS_TO.items()
            for following in sorted(leads_to)
        }
    )
    become = SessionLife.become

    def counted(life: SessionLife, state: State) -> None:
        ways[f"{life.state} to {state}"] += 1
        become(life, state)

    class Counted(SessionStates):
        @invariant()
        def count(self) -> None:
            nonlocal steps
            steps += 1
            seen.update(entry.life.state for entry in self.table.entries.values())

        def teardown(self) -> None:
            super().teardown()
            endings.update(getattr(notices[-1], "cause", "none") for notices in self.told.values())

    while steps < asked.steps:
        runs = max(1, (asked.steps - steps) // STEPS_A_RUN)
        checks = settings(
            max_examples=runs,
            stateful_step_count=STEPS_A_RUN,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        with mock.patch.object(SessionLife, "become", counted):
            run_state_machine_as_test(Counted, settings=checks)
    write_report(
        "session_states",
        {"steps_asked": asked.steps, "steps_a_run": STEPS_A_RUN},
        {
            "steps": steps,
            "sessions": sum(endings.values()),
            "seen_in_state": dict(seen),
            "ways_taken": dict(ways),
            "ended_because": dict(endings),
        },
    )


if __name__ == "__main__":
    main()
