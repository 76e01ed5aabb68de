"""A rank leaves a front that has fallen silent, and waits for one that has not spoken yet."""

from __future__ import annotations

import threading
import time
from typing import Any

from millstream.core.mesh_limits import MeshLimits
from millstream.mesh.watchdog import Watchdog
from millstream.parallel.collective_calls import CollectiveRecord

LIMITS = MeshLimits(heartbeat_s=0.02, window_s=0.1, start_s=60.0)
PATIENCE_S = 20.0


class FakeBoard:
    """The front's beat is whatever it is set to."""

    beat: int | None = None

    def post(self, key: str, value: Any) -> None:
        pass

    def is_past(self) -> bool:
        return False

    def read(self, key: str) -> Any:
        return self.beat if key.startswith("beat/") else None


def test_a_front_that_still_starts_is_waited_for_and_one_that_falls_silent_is_left() -> None:
    rendezvous = FakeBoard()
    left = threading.Event()
    reasons = list[str]()

    def give_up(rank: int, reason: str) -> None:
        reasons.append(reason)
        watchdog.stop()
        left.set()

    watchdog = Watchdog(rendezvous, 1, LIMITS, CollectiveRecord(), give_up=give_up)  # type: ignore[arg-type]
    watchdog.start()
    time.sleep(5 * LIMITS.window_s)
    assert reasons == []
    rendezvous.beat = 1
    assert left.wait(PATIENCE_S)
    assert reasons == ["the front has been silent for 0.1 s"]
