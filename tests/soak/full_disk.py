"""A disk that is full at random writes: streams go on, everybody is told once, nothing is half-written.

    python -m tests.soak.full_disk --times 50

A server streams, records, saves and takes uploads on a small disk; at a random moment of each session all but
a random number of bytes is taken, and given back once the session has gone on.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from pathlib import Path

from tests.server.full_disk import LimitedDisk, Outcome, live_through, mounted
from tests.server.kept_files import not_whole, num_drafts
from tests.server.serve_process import server_process
from tests.server.serving import wait_until
from tests.server.test_serve import TINY
from tests.soak.report import write_report


def run(times: int, seed: int) -> tuple[str, list[Outcome], list[str]]:
    """The kind of disk, what people went through, and what is on it afterwards and not whole."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="millstream-full-disk-") as folder:
        data = Path(folder) / "disk" / "data"
        with mounted(data.parent) as disk, server_process(*TINY, "--data", str(data)) as (process, url):
            outcomes = [live_through(url, disk or LimitedDisk(process.pid), rng) for _ in range(times)]
            wait_until(lambda: num_drafts(data) == 0, "everything has its name or is gone")
            return ("tmpfs" if disk else "RLIMIT_FSIZE"), outcomes, not_whole(data)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=50, help="how often the disk is filled")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    disk, outcomes, broken = run(options.times, options.seed)
    write_report(
        "full_disk",
        {"model": "wan-tiny", "times": options.times, "seed": options.seed, "disk": disk, "people": 2},
        {
            "streams_that_went_on": sum(
                each.chunks_after > 0 and each.ended == "closed" for each in outcomes
            ),
            "sessions_whose_people_were_all_told_once": sum(set(each.told) == {1} for each in outcomes),
            "recordings_that_failed_and_all_were_told_once": sum(
                set(each.told_of_recording) == {1} for each in outcomes
            ),
            "recordings_there_was_room_for": sum(set(each.told_of_recording) == {0} for each in outcomes),
            "uploads_answered": dict(Counter(str(each.upload) for each in outcomes)),
            "saves_while_full": dict(Counter(each.saved_meanwhile for each in outcomes)),
            "saves_afterwards": dict(Counter(each.saved_afterwards for each in outcomes)),
            "files_not_whole": broken,
        },
    )


if __name__ == "__main__":
    main()
