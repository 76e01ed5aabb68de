"""Fronts killed again and again: nobody is left behind.

    python -m tests.soak.kills

All ranks of a front that is killed must be gone within the watchdog's window and two seconds.
"""

from __future__ import annotations

import os
import signal
import statistics

from tests.dist.fronts import front
from tests.dist.meshes import LIMITS, seconds_until_gone
from tests.soak.report import write_report

KILLS = 50
TOPOLOGY = "front+tp2"


def kill_front() -> float:
    """Seconds until all of its ranks were gone."""
    with front(TOPOLOGY, LIMITS) as running:
        os.kill(running.process.pid or 0, signal.SIGKILL)
        return seconds_until_gone(running.ranks, LIMITS.window_s + 2)


def main() -> None:
    gone = [kill_front() for _ in range(KILLS)]
    write_report(
        "kills",
        {"topology": TOPOLOGY, "kills": KILLS, "window_s": LIMITS.window_s},
        {
            "ranks_gone_s": {"median": round(statistics.median(gone), 2), "longest": round(max(gone), 2)},
            "goal_s": LIMITS.window_s + 2,
        },
    )


if __name__ == "__main__":
    main()
