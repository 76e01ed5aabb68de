"""Where captions are found, in the forms people keep them in."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.commands.train.captions import find_videos
from millstream.core.errors import ConfigError


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


def test_text_files_beside_videos(tmp_path: Path) -> None:
    touch(tmp_path, "b.mp4", "sub/a.WEBM", "notes.pdf", "silent.mov")
    (tmp_path / "b.txt").write_text("  a boat\n at dawn ")
    (tmp_path / "sub/a.txt").write_text("a bird")
    found = {video.path.name: video.caption for video in find_videos(tmp_path)}
    assert found == {"b.mp4": "a boat at dawn", "silent.mov": "", "a.WEBM": "a bird"}


LISTS = {
    "captions.csv": 'file,caption\nb.mp4,"a boat, at dawn"\na.mp4,a bird\n',
    "metadata.jsonl": '{"file_name": "b.mp4", "text": "a boat, at dawn"}\n\n{"file_name": "a.mp4", "text": "a bird"}\n',
    "mine.txt": "b.mp4\ta boat, at dawn\na.mp4\ta bird\n",
    "with-a-mark.csv": '\ufeffvideo,prompt\nb.mp4,"a boat, at dawn"\na.mp4,a bird\n',
}


@pytest.mark.parametrize("name", LISTS)
def test_lists(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(LISTS[name], encoding="utf-8")
    named = [(video.path.relative_to(tmp_path).name, video.caption) for video in find_videos(tmp_path / name)]
    assert named == [("b.mp4", "a boat, at dawn"), ("a.mp4", "a bird")]


def test_a_list_in_a_folder_comes_before_text_files(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4", "b.mp4")
    (tmp_path / "captions.csv").write_text("file,caption\na.mp4,listed\n")
    assert [video.caption for video in find_videos(tmp_path)] == ["listed"]


@pytest.mark.parametrize(
    "lacking", ['{"file": "b.mp4"}', '{"file": "b.mp4", "caption": null}', '{"file": "b.mp4", "caption": ""}']
)
def test_a_row_without_a_caption_leaves_its_video_out_and_no_other(tmp_path: Path, lacking: str) -> None:
    rows = ['{"file": "a.mp4", "caption": "a bird"}', lacking, '{"file": "c.mp4", "text": "a boat"}']
    (tmp_path / "l.jsonl").write_text("\n".join(rows))
    assert [video.caption for video in find_videos(tmp_path / "l.jsonl")] == ["a bird", "", "a boat"]


@pytest.mark.parametrize(
    ("files", "source", "said"),
    [
        ({}, "nowhere", "is not there"),
        ({"a.pdf": ""}, ".", "names no video"),
        ({"a.mp4": ""}, ".", "no video of .* has a caption; put a text file"),
        (
            {"a.mp4": "", "a.txt": "\udcff"},
            ".",
            r"no video of .* \(a.mp4: its caption is not text in UTF-8; save it as that\); put",
        ),
        ({"l.csv": "name,caption\na.mp4,x\n"}, "l.csv", "has no column file .*; it has name, caption"),
        ({"l.csv": "file,caption\n,x\n"}, "l.csv", "line 2: no file is named"),
        ({"l.jsonl": '{"file": "a.mp4", "caption": "x"}\n[1]\n'}, "l.jsonl", "line 2: not a JSON object"),
        (
            {"l.jsonl": '{"name": "a.mp4", "caption": "x"}\n'},
            "l.jsonl",
            "has no column file .*; it has name, caption",
        ),
        ({"l.jsonl": '{"file": null, "caption": "x"}\n'}, "l.jsonl", "line 1: no file is named"),
        (
            {"a.mp4": "\udce8"},
            "a.mp4",
            "a.mp4 must end in .csv, .jsonl, .txt, .tsv; or name a folder of videos",
        ),
        ({"l.xml": "x"}, "l.xml", "must end in .csv"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(
    tmp_path: Path, files: dict[str, str], source: str, said: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, errors="surrogateescape")
    with pytest.raises(ConfigError, match=said) as raised:
        find_videos(tmp_path / source)
    assert "\n" not in str(raised.value)
