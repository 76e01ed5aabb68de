"""One attacker, a process of its own that gives way to everybody else.

    python -m tests.soak.abuses slow_bodies ws://127.0.0.1:8000 --seconds 10 --seed 1

Prints what it got done, as one line of JSON. Refuses every address but this machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import time
from contextlib import suppress
from pathlib import Path

from tests.soak.abuses.kinds import ABUSES
from tests.soak.abuses.scene import Scene
from tests.soak.abuses.target import Target

LOWEST = 19
GROUP = Path("/proc/self/autogroup")
"""Where Linux groups processes by their session, a nice value counts within the group only, and the group has
one too."""
RETRY_S = 1.0


async def attack(kind: str, scene: Scene) -> dict[str, int]:
    """For as long as the scene lasts; one that is not let in comes again."""
    while scene.left_s:
        try:
            await asyncio.wait_for(ABUSES[kind](scene), scene.left_s + 2)
        except (OSError, asyncio.TimeoutError):
            await asyncio.sleep(min(RETRY_S, scene.left_s))
    return dict(scene.did)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=sorted(ABUSES))
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    target = Target.at(options.url)
    os.nice(LOWEST)
    with suppress(OSError):
        GROUP.write_text(str(LOWEST))
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # a peer that hangs up is what is asked for here
    chance = random.Random(f"{options.seed}/{options.kind}")
    until = time.monotonic() + options.seconds
    print(json.dumps(asyncio.run(attack(options.kind, Scene(target, chance, until)))))


if __name__ == "__main__":
    main()
