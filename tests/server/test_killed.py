"""A server that is killed while it records, saves and takes uploads: the next one finds what was promised, and nothing else."""

from __future__ import annotations

from pathlib import Path

from benchmarks.file_kills import find_after, live_until_killed
from tests.server.serve_process import server_process
from tests.server.test_serve import TINY


def test_what_people_were_told_is_kept_is_found_after_a_kill_and_the_recordings_play(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server_process(*TINY, "--data", str(data)) as (process, url):
        people = live_until_killed(url, process.kill, num_chunks=3, after_s=1.0)
    assert all(person.snapshots for person in people)
    with server_process(*TINY, "--data", str(data)) as (_, url):
        found = find_after(url, data, people)
    assert found.lost == ()
    assert found.not_whole == ()
    assert found.drafts_left == 0
    assert len(found.recorded_frames) == len(people), "what was recorded until then"
