"""Files appear whole or not at all, and what a killed writer leaves is told from what a living one is
writing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.core.files import DRAFT, Draft, Staging, drafts, left_behind, sweep

WRITE_AND_WAIT = """
import sys
from pathlib import Path
from millstream.core.files import Staging

with Staging(Path(sys.argv[1])) as staging:
    staging.path("a.bin").write_bytes(b"half")
    place = staging.path("deep/b.bin")
    place.write_bytes(b"half")
    (place.parent / ".tmpXyZ").write_bytes(b"a library's own")
    print("written", flush=True)
    sys.stdin.read()
"""


@contextmanager
def writer(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that is in the midst of writing."""
    command = [sys.executable, "-c", WRITE_AND_WAIT, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        yield process
        process.kill()


def write(folder: Path, name: str, data: bytes) -> None:
    with Staging(folder) as staging:
        staging.path(name).write_bytes(data)


def test_files_appear_together_and_an_error_leaves_nothing_not_even_the_folders(tmp_path: Path) -> None:
    with Staging(tmp_path / "out") as staging:
        staging.path("a.bin").write_bytes(b"a")
        staging.path("deep/b.bin").write_bytes(b"b")
        assert not (tmp_path / "out" / "a.bin").exists()
    assert sorted(os.listdir(tmp_path / "out")) == ["a.bin", "deep"]
    with pytest.raises(RuntimeError), Staging(tmp_path / "other") as staging:  # noqa: PT012
        staging.path("deep/c.bin").write_bytes(b"c")
        raise RuntimeError
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.slow
def test_what_a_killed_writer_left_goes_with_the_next_that_writes_there(tmp_path: Path) -> None:
    with writer(tmp_path) as process:
        process.kill()
        process.wait()
    (left,) = drafts(tmp_path)
    assert sorted(path.name for path in left.rglob("*.*")) == [".tmpXyZ", "a.bin", "b.bin"], (
        "all of it lies in one place"
    )
    write(tmp_path, "new.bin", b"new")
    assert os.listdir(tmp_path) == ["new.bin"]


@pytest.mark.slow
def test_what_a_living_writer_writes_is_left_alone(tmp_path: Path) -> None:
    with writer(tmp_path) as process:
        sweep(tmp_path)
        write(tmp_path, "new.bin", b"new")
        assert len(list(drafts(tmp_path))) == 1
        process.communicate("go on")
        assert process.returncode == 0
    assert (tmp_path / "a.bin").read_bytes() == b"half"
    assert list(drafts(tmp_path)) == []


def test_only_drafts_are_swept(tmp_path: Path) -> None:
    strangers = [
        ".millstream-notes.partial",
        ".tmpAbCdEf",
        "clip.mp4.partial",
        ".millstream-0123456789abcdef.partial.txt",
    ]
    for name in strangers:
        (tmp_path / name).mkdir()
    (tmp_path / ".millstream-0123456789abcdef.partial").write_text(
        "a file of that name is not ours: drafts are folders"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / ".millstream-fedcba9876543210.partial").symlink_to(elsewhere)
    sweep(tmp_path)
    assert len(os.listdir(tmp_path)) == len(strangers) + 3
    assert elsewhere.is_dir()


def test_a_draft_that_is_found_is_its_finders_alone_until_the_next(tmp_path: Path) -> None:
    (tmp_path / f".millstream-{'0' * 16}.partial").mkdir()
    for path in left_behind(tmp_path):
        assert list(left_behind(tmp_path)) == []
        assert path.is_dir()
    assert list(drafts(tmp_path)) == []


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dev").symlink_to("/dev/null")
    for name in ("pipe", "dev"):
        with pytest.raises(FileExistsError):
            write(tmp_path, name, b"data")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["dev", "pipe"]


def test_drafts_have_names_of_their_own(tmp_path: Path) -> None:
    made = [Draft(tmp_path) for _ in range(3)]
    assert all(DRAFT.fullmatch(draft.path.name) for draft in made)
    for draft in made:
        draft.remove()
        draft.remove()
    assert os.listdir(tmp_path) == []
