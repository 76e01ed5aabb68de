"""`millstream generate` from a picture and from the end of a clip, and its replay without either."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from millstream.core.config import StreamConfig
from millstream.core.errors import ControlError
from millstream.core.events import chunk_starts, read_events
from millstream.session.journal import read_journal
from millstream.video.reader import VideoReader
from tests.unit.commands.test_cli import TINY, frames_of, millstream
from tests.unit.video_files import moving_frames, one_line, write_video

pytestmark = pytest.mark.slow


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    Image.fromarray(moving_frames(1)[0]).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return write_video(tmp_path / "clip.mp4", moving_frames(20), fps=12)


def test_a_picture_is_shown_first_and_its_journal_replays_without_it(tmp_path: Path, photo: Path) -> None:
    out = tmp_path / "out.mp4"
    journal = tmp_path / "run.jsonl"
    command = ("generate", *TINY, "--image", photo, "--chunks", 2, "--journal", journal, "--out", out)
    assert millstream(*command)[0] == 0
    assert len(frames_of(out)) == 1 + 24
    photo.unlink()
    code, said, _ = millstream("replay", journal, "--check", "--out", tmp_path / "again.mp4", "--quiet")
    assert (code, said.splitlines()[0]) == (0, "identical")
    assert np.array_equal(frames_of(tmp_path / "again.mp4"), frames_of(out))


def test_a_clip_goes_on_from_its_end_at_its_rate(tmp_path: Path, clip: Path) -> None:
    out = tmp_path / "out.mp4"
    journal = tmp_path / "run.jsonl"
    command = ("generate", *TINY, "--extend", clip, "--chunks", 1, "--journal", journal, "--out", out)
    assert millstream(*command, "--fit", "pad")[0] == 0
    assert len(frames_of(out)) == 17 + 12, "of 20 frames 5 latent ones fit"
    with VideoReader(out) as reader:
        assert reader.fps == 12
    (line,) = read_journal(journal).chunks
    assert line.envelope.begin_from is not None
    assert line.envelope.begin_from.frames == 5


def test_a_picture_in_a_timeline_begins_where_it_says(tmp_path: Path, photo: Path) -> None:
    events = tmp_path / "events.json"
    later = {"type": "image", "path": "photo.png", "mode": "blend", "chunks": 2, "chunk": 3}
    events.write_text(json.dumps([{"chunk": 1, "type": "image", "path": photo.name}, later]))
    out = tmp_path / "out.mp4"
    journal = tmp_path / "run.jsonl"
    command = ("generate", *TINY, "--events", events, "--chunks", 5, "--journal", journal, "--out", out)
    assert millstream(*command)[0] == 0
    lines = read_journal(journal).chunks
    assert [line.envelope.cache_epoch for line in lines] == [0, 1, 1, 1, 1]
    assert [bool(line.envelope.towards) for line in lines] == [False, False, False, True, True]
    assert millstream("replay", journal, "--check", "--quiet")[1].splitlines()[0] == "identical"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--image", "none.png"), "none.png: cannot be read"),
        (("--image", "text.png"), "not a picture"),
        (("--extend", "text.png"), "not a video"),
        (("--extend", "none.mp4"), "is not there"),
        (("--image", "text.png", "--extend", "none.mp4"), "one of --image, --extend and --input"),
        (("--image", "text.png", "--fit", "stretch"), "--fit is crop or pad"),
    ],
)
def test_what_cannot_be_begun_from_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.png").write_bytes(b"once upon a time\n" * 100)
    code, _, errors = millstream("generate", *TINY, *options, "--chunks", 1, "--out", "out.mp4")
    assert code == 2
    assert len(errors.strip().splitlines()) == 1, errors
    assert words in errors
    assert not Path("out.mp4").exists()


def test_a_picture_that_an_event_names_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    for event, words in (
        ({"type": "image", "chunk": 0}, "event 1 needs path"),
        ({"type": "image", "chunk": 0, "path": "none.png"}, "none.png: No such file"),
        ({"type": "image", "chunk": 0, "path": "."}, "Is a directory"),
    ):
        path.write_text(json.dumps([event]))
        with pytest.raises(ControlError) as error:
            read_events(path)
        one_line(error, words)


def test_a_chunk_that_begins_from_a_picture_is_as_much_longer() -> None:
    config = StreamConfig(height=64, width=64, fps=1.0)
    starts = chunk_starts(config, {1: 0, 2: 1, 3: 3})
    assert [next(starts) for _ in range(5)] == [0, 9, 18, 31, 52]
