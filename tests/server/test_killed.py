"""A server that is killed while it records, saves and takes uploads: the next one finds what was promised,
and nothing else."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.server.serve_process import server_process
from tests.server.test_serve import TINY
from tests.soak.file_kills import find_after, live_until_killed, people_at
from tests.soak.keep_kills import Witness, of_one_server, replayed


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


@pytest.mark.slow
def test_sessions_of_a_killed_server_show_what_they_showed_and_take_controls_for_what_comes_after(
    tmp_path: Path,
) -> None:
    people = [Witness(number) for number in range(2)]
    asyncio.run(of_one_server(tmp_path / "data", people, 2, random.Random(1)))
    assert [each.judge() for each in people] == [[], []]
    again = replayed([tmp_path / "data"], people)
    assert again.seen >= sum(len(each.shown) for each in people), "every chunk that was seen is in a journal"
    assert (again.digests_differing, again.frames_differing) == (0, 0)
