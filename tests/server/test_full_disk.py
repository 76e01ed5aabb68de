"""A disk that is full ends no stream: people are told once, what was asked for is refused in words, nothing
is half-written."""

from __future__ import annotations

import random
from pathlib import Path

from tests.server.full_disk import LimitedDisk, live_through, mounted
from tests.server.kept_files import not_whole, num_drafts
from tests.server.serve_process import server_process
from tests.server.serving import wait_until
from tests.server.test_serve import TINY


def test_streams_go_on_when_the_disk_is_full_and_everybody_is_told_once(tmp_path: Path) -> None:
    """On a disk of its own where that may be mounted, and with files that may not grow."""
    data = tmp_path / "disk" / "data"
    with (
        mounted(tmp_path / "disk") as disk,
        server_process(*TINY, "--data", str(data), "--keep", "1") as (process, url),
    ):
        for seed, each in enumerate([disk or LimitedDisk(process.pid), LimitedDisk(process.pid)]):
            found = live_through(url, each, random.Random(seed))
            assert found.told == (1, 1)
            assert found.told_of_recording in ((0, 0), (1, 1)), "there may have been room for it"
            assert found.told_of_keeping == (1, 1)
            assert found.chunks_after == 2
            assert found.upload in (400, 507), "it was no snapshot, or there was no room to look"
            assert found.saved_meanwhile in ("saved", "not_kept")
            assert found.saved_afterwards == "saved"
            assert found.ended == "closed"
        wait_until(lambda: num_drafts(data) == 0, "everything has its name or is gone")
        assert not_whole(data) == []
        assert len(list((data / "journals").iterdir())) == 2, "as far as they came"
        assert list((data / "sessions").iterdir()) == [], "they ended because somebody wanted it"
