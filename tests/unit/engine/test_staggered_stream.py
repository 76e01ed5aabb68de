"""A stream batch as people ask for it: said to be approximate, steered without losing a picture, replayed to
the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from millstream.engine.staggered import staggered_stream
from millstream.session.journal import read_journal
from tests.unit.commands.test_cli import TINY, frames_of, millstream
from tests.unit.models_for_tests import tiny_engine

pytestmark = pytest.mark.slow

ASKED = [*TINY, "--window", 9, "--steps", "1000,750,500,250", "--experimental"]
STEERED = [
    {"chunk": 1, "type": "seed", "seed": 7},
    {"chunk": 2, "type": "prompt", "prompt": "a storm", "mode": "recompute"},
    {"chunk": 4, "type": "cut"},
    {"chunk": 5, "type": "prompt", "prompt": "night", "mode": "blend", "chunks": 2},
    {"chunk": 8, "type": "steps", "steps": [1000, 500]},
]


def generated(
    folder: Path, *options: object, events: list[dict[str, object]] | None = None, chunks: int = 9
) -> Path:
    """The journal of a run, beside its clip."""
    timeline = folder / "events.json"
    timeline.write_text(json.dumps(events or []))
    journal = folder / "run.jsonl"
    paths = ["--events", timeline, "--journal", journal, "--out", folder / "clip.mp4", "--overwrite"]
    code, _, errors = millstream("generate", *ASKED, *options, "--chunks", chunks, *paths)
    assert code == 0, errors
    return journal


def digests(journal: Path) -> list[str]:
    return [line.digest for line in read_journal(journal).chunks]


@pytest.mark.parametrize("depth", [2, 3])
def test_a_steered_stream_batch_loses_no_chunk_and_replays_to_the_same_bits(
    tmp_path: Path, depth: int
) -> None:
    journal = generated(tmp_path, "--stream-batch", depth, events=STEERED)
    found = read_journal(journal)
    assert found.header.stream_batch == depth
    frames = frames_of(tmp_path / "clip.mp4")
    assert len(frames) == 9 + 8 * 12
    assert [line.envelope.chunk_index for line in found.chunks] == list(range(len(found.chunks)))
    assert [receipt.control_id for line in found.chunks for receipt in line.receipts] == [
        "c1",
        "c2",
        "c3",
        "c4",
        "c5",
    ]
    code, said, _ = millstream("replay", journal, "--check", "--out", tmp_path / "again.mp4", "--quiet")
    assert (code, said.splitlines()[0]) == (0, "identical")
    assert np.array_equal(frames_of(tmp_path / "again.mp4"), frames)


def test_no_chunk_is_begun_that_is_not_shown() -> None:
    """One begun beside the last would take frames out of its window, and no journal would tell."""
    engine = tiny_engine()
    session = engine.session("sea", height=16, width=32, window=9)
    stream = staggered_stream(engine, session, depth=2)
    assert [chunk.index for chunk in stream.stream(num_frames=9 + 12 + 1)] == [0, 1, 2]
    assert session.timeline.chunk_index == 3


def test_it_is_said_once_that_it_is_approximate_and_it_is(tmp_path: Path) -> None:
    out = tmp_path / "clip.mp4"
    said = {
        depth: millstream(
            "generate", *ASKED, "--chunks", 4, "--stream-batch", depth, "--out", out, "--overwrite"
        )[2]
        for depth in (1, 2)
    }
    assert said[1] == ""
    assert said[2].count("approximate") == 1
    exact, batched = (digests(generated(tmp_path, "--stream-batch", depth, chunks=4)) for depth in (1, 2))
    assert batched[0] == exact[0], "the first has nothing noisy before it"
    assert set(batched[1:]).isdisjoint(exact[1:])


def test_a_journal_is_never_replayed_as_if_its_chunks_had_been_alone(tmp_path: Path) -> None:
    journal = generated(tmp_path, "--stream-batch", 2, chunks=4)
    journal.write_text(journal.read_text().replace('"stream_batch":2', '"stream_batch":1'))
    assert millstream("replay", journal, "--check", "--quiet")[1].strip() == "3 chunks differ"


MISTAKES = {
    "no depth": (["--stream-batch", 0], "a depth of 1 or more, got 0"),
    "too deep": (["--stream-batch", 4], "4 chunks of 3 frames under way need a window of 12"),
    "compiled": (["--stream-batch", 2, "--compile", "eager"], "a stream batch needs --compile off"),
    "anchors": (["--stream-batch", 2, "--anchor", "latent"], "a stream batch needs --anchor off"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_staggered_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    asked, fix = MISTAKES[name]
    code, _, errors = millstream("generate", *ASKED, *asked, "--out", tmp_path / "clip.mp4")
    assert (code, len(errors.strip().splitlines())) == (2, 1), errors
    assert fix in errors
    assert not list(tmp_path.iterdir())
