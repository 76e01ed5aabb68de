"""A server that is killed while it records, saves and takes uploads: the next one finds what was promised, and nothing else."""

from __future__ import annotations

from pathlib import Path

from benchmarks.file_kills import find_after, live_until_killed


def test_what_people_were_told_is_kept_is_found_after_a_kill_and_the_recording_plays(tmp_path: Path) -> None:
    promised = live_until_killed(tmp_path / "data", num_chunks=8, after_s=1.0)
    assert len(promised.snapshots) >= 1
    found = find_after(tmp_path / "data", promised)
    assert found.lost == ()
    assert found.not_whole == ()
    assert found.drafts_left == 0
    assert found.recorded_frames > 0, "what was recorded until then"
