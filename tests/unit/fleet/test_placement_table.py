"""Who is where, in which order."""

from __future__ import annotations

from millstream.fleet.policy.placement_table import PlacementTable
from millstream.fleet.policy.replica_capacity import ReplicaCapacity
from tests.unit.fleet.fleet_states import a_replica, a_request


def test_those_who_have_their_rates_again_are_counted_in_the_order_in_which_they_came() -> None:
    """Whatever their names' hashes are, which differ from one process to the next."""
    table = PlacementTable(["brook"], "pack", lambda _: None)
    home = table.rooms["brook"]
    names = [f"back-{number}" for number in range(9)]
    room = ReplicaCapacity(a_replica("r0", seconds=0.05), 0.0)
    home.add(room)
    for name in names:
        session = table.session(a_request(name, memory_bytes=0), 0.0)
        session.wait(lost=True)
        table.add(session)
        table.place(session, room, 0.0)
    assert room.yielding == {*names}
    table.regain("brook")
    assert room.yielding == set()
    assert [*room.held] == names
