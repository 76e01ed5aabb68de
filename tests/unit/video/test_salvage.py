"""Of a file whose writing stopped anywhere, what is whole is found."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from millstream.video.salvage import cut_to_whole_film, cut_to_whole_lines
from millstream.video.writer import VideoWriter
from tests.unit.video_files import FPS, noise_frames


def num_frames(path: Path) -> int:
    """All of them decode."""
    with av.open(str(path)) as film:
        return sum(1 for _ in film.decode(video=0))


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """One as its writer leaves it when it is killed, and the same when it is finished."""
    folder = tmp_path_factory.mktemp("films")
    with VideoWriter(folder / "film.mp4", fps=FPS, growing=True) as writer:
        for _ in range(10):
            writer.write(noise_frames(12))
        (draft,) = folder.iterdir()
        growing = (draft / "film.mp4").read_bytes()
    return {"growing": growing, "finished": (folder / "film.mp4").read_bytes()}


def test_a_growing_film_is_an_ordinary_one_in_the_end(films: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_bytes(films["finished"])
    assert num_frames(tmp_path / "film.mp4") == 120
    assert b"moof" not in films["finished"][:1000]
    assert cut_to_whole_film(tmp_path / "film.mp4")
    assert (tmp_path / "film.mp4").read_bytes() == films["finished"], "nothing is cut off a whole one"


def test_a_film_that_stops_anywhere_plays_to_its_last_fragment_or_is_none(
    films: dict[str, bytes], tmp_path: Path
) -> None:
    growing = films["growing"]
    path = tmp_path / "film.mp4"
    path.write_bytes(growing)
    assert cut_to_whole_film(path)
    most = num_frames(path)
    assert most >= 2 * FPS, f"{most} frames of 120 were on the disk"
    lengths = []
    for end in np.linspace(0, len(growing), 40).astype(int):
        path.write_bytes(growing[:end])
        lengths.append(num_frames(path) if cut_to_whole_film(path) else 0)
    assert lengths == sorted(lengths)
    assert lengths[0] == 0
    assert lengths[-1] == most
    assert len(set(lengths)) >= 3, "it grows by fragments"


@pytest.mark.parametrize(
    "data", [b"", b"x", b"\0" * 64, b"\0\0\0\x08moov" * 4, b"not a film at all, but longer than a header"]
)
def test_what_is_no_film_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "film.mp4").write_bytes(data)
    assert not cut_to_whole_film(tmp_path / "film.mp4")


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (b"", b""),
        (b"half", b""),
        (b"one\n", b"one\n"),
        (b"one\ntwo\nhal", b"one\ntwo\n"),
        (b"a\n" + b"b" * 3_000_000, b"a\n"),
    ],
)
def test_lines_are_cut_to_the_last_whole_one(tmp_path: Path, data: bytes, whole: bytes) -> None:
    path = tmp_path / "lines"
    path.write_bytes(data)
    assert cut_to_whole_lines(path) == bool(whole)
    if whole:
        assert path.read_bytes() == whole
