"""What is decided is done; what comes of it too late changes nothing."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from millstream.core.errors import ProtocolBroken
from millstream.fleet import decision_runner
from millstream.fleet.decision_runner import DecisionRunner
from millstream.fleet.policy.fleet_policy import FleetPolicy
from millstream.fleet.policy.types import Move
from millstream.fleet.recorder import FleetNotes
from tests.unit.fleet.small_fleets import a_fleet, places


class Moves:
    """Of sessions, by target: under way until somebody says what became of them."""

    def __init__(self) -> None:
        self.ends: dict[str, asyncio.Future[None]] = {}

    async def hand_on(self, _session_id: str, _key: str, _source: Any, target: str) -> None:
        self.ends[target] = asyncio.get_running_loop().create_future()
        await self.ends[target]


def a_runner(policy: FleetPolicy) -> DecisionRunner:
    links: Any = {name: name for name in ("r0", "r1", "r2")}
    return DecisionRunner(cast(Any, None), policy, cast(Any, None), links, FleetNotes())


def test_a_move_whose_target_died_does_not_end_the_one_that_came_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def walk() -> None:
        policy = a_fleet(3, placement="pack")
        moves = Moves()
        monkeypatch.setattr(decision_runner, "hand_on", moves.hand_on)
        runner = a_runner(policy)
        assert places(policy, "a") == ["r2"]
        runner.carry_out(policy.drain("r2", 1.0))
        await asyncio.sleep(0)
        (first,) = moves.ends
        runner.carry_out(policy.replica_gone(first, 2.0))
        runner.carry_out([move for move in policy.scale(60.0) if isinstance(move, Move)])
        await asyncio.sleep(0)
        _, second = moves.ends
        moves.ends[first].set_exception(ProtocolBroken("the replica has gone"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert runner.moving == {"a": second}, "it is on its way"
        moves.ends[second].set_result(None)
        for _ in range(3):
            await asyncio.sleep(0)
        assert policy.place_of("a") == second
        assert runner.moving == {}
        await runner.close()

    asyncio.run(walk())
