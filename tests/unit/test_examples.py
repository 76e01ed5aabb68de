"""The programs in examples/ run as they are printed, and say what they claim."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.serving import serving

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples"
MOST_LINES = 22


def run(name: str, folder: Path, *words: str) -> list[str]:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_stream_makes_chunks_and_leaves_a_picture(tmp_path: Path) -> None:
    lines = run("stream", tmp_path, "2")
    assert [line.split(" in ")[0] for line in lines] == [
        "chunk 0: 9 frames of 256x256",
        "chunk 1: 12 frames of 256x256",
    ]
    assert (tmp_path / "last-frame.png").stat().st_size > 1000


def test_changes_apply_at_their_chunks_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    lines = run("steer", tmp_path)
    assert lines[:3] == [
        "SetPrompt is queued for chunk 2",
        "SetSeed is queued for chunk 3",
        "Cut is queued for chunk 4",
    ]
    assert lines[3].startswith("refused: ")
    assert lines[4:] == [
        f"chunk {n} of epoch {int(n >= 4)}: {['applied'] if n in (2, 3, 4) else []}" for n in range(6)
    ]


def test_two_futures_of_one_moment_differ(tmp_path: Path) -> None:
    lines = run("fork", tmp_path)
    apart = [float(found[1]) for line in lines if (found := re.search(r"are ([\d.]+) of 255 apart", line))]
    assert len(apart) == 3
    assert min(apart) > 1


def test_a_journal_gives_the_same_bits_again(tmp_path: Path) -> None:
    assert run("replay", tmp_path) == [f"chunk {index}: the bits are the same" for index in range(4)]


def test_a_program_steers_a_stream_of_a_server(tmp_path: Path) -> None:
    with serving() as server:
        lines = run("client", tmp_path, server.url())
    assert sum(line.startswith("chunk ") for line in lines) == 6
    assert lines[-1].startswith("the boat shows since chunk ")


def test_examples_stay_short_enough_to_be_read_at_a_glance() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert len(lengths) == 5
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}
