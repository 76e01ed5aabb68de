"""A server that is killed while it records, saves and takes uploads: the next one finds what was promised, and nothing else."""

from __future__ import annotations

from pathlib import Path

from benchmarks.file_kills import find_after, live_until_killed, people_at
from benchmarks.keep_kills import EVERY, Steerer
from tests.server.kept_files import kept_before, kept_file
from tests.server.serve_process import server_process
from tests.server.serving import wait_until
from tests.server.test_serve import TINY


def test_what_people_were_told_is_kept_is_found_after_a_kill_and_the_recordings_play(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with server_process(*TINY, "--data", str(data)) as (process, url):
        people = people_at(url)
        live_until_killed(people, process.kill, num_chunks=3, after_s=1.0)
    assert all(person.snapshots for person in people)
    with server_process(*TINY, "--data", str(data)) as (_, url):
        found = find_after(url, data, people)
    assert found.lost == ()
    assert found.not_whole == ()
    assert found.drafts_left == 0
    assert len(found.recorded_frames) == len(people), "what was recorded until then"


def test_sessions_of_a_killed_server_come_back_within_a_save_interval_and_their_receipts_are_true(tmp_path: Path) -> None:
    options = (*TINY, "--data", str(tmp_path / "data"), "--keep", str(EVERY))
    people = [Steerer(number, fps=1.0, lead_s=60.0) for number in range(2)]

    def kill_when_kept() -> None:
        files = [kept_file(tmp_path / "data", person.session) for person in people]
        wait_until(lambda: all(kept_before(file) > EVERY for file in files), "a control is in what is kept")
        process.kill()

    for _ in range(2):
        with server_process(*options) as (process, url):
            for person in people:
                person.come_to(url)
            live_until_killed(people, kill_when_kept, num_chunks=EVERY + 1, after_s=0.0)
    returns = [one for person in people for one in person.returns]
    assert len(returns) == len(people)
    for one in returns:
        assert one.chunks_lost <= EVERY
        assert one.controls_kept > 0
        assert (one.acknowledged_lost, one.untrue) == ((), ())
        assert one.told_of_loss
        assert one.same_pictures is not False
