"""A journal replays to the same bits, survives being cut short, and refuses what it was not made with."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.controls import Cut, Pause, Resume, SetPrompt, SetSeed, SetSteps, SetWindow
from millstream.core.errors import EnvelopeRefused, JournalError
from millstream.core.speed import Speed
from millstream.engine.engine import Engine
from millstream.engine.replay import differences, replay
from millstream.ops.precision import cpu_has_bfloat16
from millstream.session.feed import LiveFeed
from millstream.session.journal import ChunkLine, InputVideo, JournalWriter, read_journal
from tests.unit.models_for_tests import tiny_engine
from tests.unit.session.test_session import moving_square
from tests.unit.session.test_timeline import control_lists

pytestmark = pytest.mark.slow

CONTROLS = [
    (1, SetPrompt(prompt="storm", mode="blend", chunks=2)),
    (3, SetPrompt(prompt="a desert", mode="recompute")),
    (4, SetWindow(window=6, sink=1)),
    (5, SetSteps(steps=(1000, 700, 300))),
    (6, Cut()),
    (7, SetSeed(seed=12)),
    (8, SetPrompt(prompt="night", mode="keep")),
]


def record(
    path: Path, chunks: int = 10, *, with_input: bool = False, engine: Engine | None = None, **changes: object
) -> list[str]:
    engine = engine or tiny_engine()
    size = dict(height=16, width=32)  # that of an input's frames
    config = engine.stream_config(**(size | changes))
    header = engine.journal_header(config, "session")
    with JournalWriter(path, header) as journal:
        frames = moving_square(9 + 12 * chunks, 2) if with_input else None
        session = engine.session("sea", config=config, journal=journal, session_id="session", frames=frames)
        for chunk, control in CONTROLS:
            session.control(control, at_chunk=chunk)
        return [chunk.digest for chunk in session.stream(chunks)]


FILL = """
import resource, sys
from pathlib import Path
from millstream.core.errors import JournalError
from millstream.session.journal import ChunkLine, JournalWriter, read_journal

whole = read_journal(Path(sys.argv[1]))
for limit in map(int, sys.argv[3:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    path = Path(sys.argv[2]) / str(limit)
    try:
        with JournalWriter(path, whole.header) as writer:
            for line in whole.chunks:
                writer.write(line.envelope, line.digest, line.receipts)
    except JournalError as error:
        print(error)
"""


def test_on_a_full_disk_a_journal_ends_with_a_whole_line_and_closes_without_another_word(
    tmp_path: Path,
) -> None:
    record(tmp_path / "whole.jsonl", chunks=3)
    (tmp_path / "out").mkdir()
    whole = read_journal(tmp_path / "whole.jsonl")
    lengths = [len(msgspec.json.encode(line)) + 1 for line in (whole.header, *whole.chunks)]
    cuts = [
        0,
        lengths[0] // 2,
        lengths[0],
        lengths[0] + 1,
        sum(lengths[:2]),
        sum(lengths[:2]) + 100,
        sum(lengths) - 1,
    ]
    command = [
        sys.executable,
        "-c",
        FILL,
        str(tmp_path / "whole.jsonl"),
        str(tmp_path / "out"),
        *map(str, cuts),
    ]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    assert len(lines) == len(cuts)
    assert all("free some space" in line for line in lines)
    found = {
        cut: read_journal(tmp_path / "out" / str(cut))
        for cut in cuts
        if (tmp_path / "out" / str(cut)).exists()
    }
    assert not any(journal.cut_short for journal in found.values())
    assert [len(found[cut].chunks) if cut in found else None for cut in cuts] == [None, None, 0, 0, 1, 1, 2]


KINDS: tuple[dict[str, Any], ...] = (
    dict(anchor="decoded", window=6),
    dict(),
    dict(positions="windowed", sink=2),
    dict(anchor="latent", window=6),
    dict(context_noise=50),
)
IN_BFLOAT16 = KINDS if cpu_has_bfloat16() else tuple(kind | dict(height=16, width=16) for kind in KINDS[:1])
"""Where it is emulated, one of full size takes a minute."""


@pytest.mark.parametrize(
    ("dtype", "changes"),
    [*(("float32", changes) for changes in KINDS), *(("bfloat16", changes) for changes in IN_BFLOAT16)],
    ids=str,
)
def test_a_replay_gives_the_same_bits_under_every_kind_of_control(
    tmp_path: Path, dtype: str, changes: dict
) -> None:
    engine = tiny_engine(dtype)
    digests = record(tmp_path / "run.jsonl", engine=engine, **changes)
    journal = read_journal(tmp_path / "run.jsonl")
    assert [line.digest for line in journal.chunks] == digests
    replayed = list(replay(engine, journal))
    assert [chunk.chunk.digest for chunk in replayed] == digests
    assert all(chunk.identical for chunk in replayed)


@settings(max_examples=12)
@given(
    control_lists, st.sampled_from(["off", "latent", "decoded"]), st.sampled_from(["absolute", "windowed"])
)
def test_whatever_was_asked_replays_to_the_same_bits(asked: list, anchor: str, positions: str) -> None:
    engine = tiny_engine()
    config = engine.stream_config(height=16, width=16, window=8, sink=1, anchor=anchor, positions=positions)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        with JournalWriter(path, engine.journal_header(config, "any")) as journal:
            session = engine.session("sea", config=config, journal=journal, session_id="any")
            for chunk, control in asked:
                if not isinstance(control, (Pause, Resume)):
                    session.control(control, at_chunk=chunk)
            assert len(list(session.stream(10))) == 10
        assert all(chunk.identical for chunk in replay(engine, read_journal(path)))


def test_receipts_are_in_the_journal(tmp_path: Path) -> None:
    record(tmp_path / "run.jsonl")
    applied = [r.chunk_index for line in read_journal(tmp_path / "run.jsonl").chunks for r in line.receipts]
    assert applied == [chunk for chunk, _ in CONTROLS]


def test_a_restyled_video_replays_from_its_input(tmp_path: Path) -> None:
    digests = record(tmp_path / "run.jsonl", 4, with_input=True)
    journal = read_journal(tmp_path / "run.jsonl")
    session = tiny_engine().session(
        journal.chunks[0].envelope.prompts,
        config=journal.header.config,
        frames=moving_square(9 + 12 * 4, 2),
        session_id="again",
    )
    assert [
        chunk.digest for chunk in tiny_engine().stream(session).replay(map(_renamed, journal.chunks))
    ] == digests


@pytest.mark.parametrize(("dtype", "height", "width"), [("float32", 16, 32), ("bfloat16", 16, 16)])
def test_a_live_input_replays_from_the_journal_alone(
    tmp_path: Path, dtype: str, height: int, width: int
) -> None:
    engine = tiny_engine(dtype)
    path = tmp_path / "run.jsonl"
    feed = LiveFeed((height, width))
    config = engine.stream_config(height=height, width=width)
    for frame in moving_square(9 + 12 + 5, 2):
        feed.push(frame[:height, :width].copy())
    feed.finish()
    with JournalWriter(path, engine.journal_header(config, "session")) as journal:
        session = engine.session("sea", config=config, journal=journal, session_id="session", frames=feed)
        session.control(Cut(), at_chunk=1)
        chunks = list(session.stream())
    assert [len(chunk.frames) for chunk in chunks] == [9, 9, 8], "the last as far as its input went"
    again = list(replay(engine, read_journal(path)))
    assert [chunk.identical for chunk in again] == [True] * 3
    assert [len(chunk.chunk.frames) for chunk in again] == [9, 9, 8]


def test_a_video_that_the_header_names_is_not_written_again(tmp_path: Path) -> None:
    engine = tiny_engine()
    config = engine.stream_config(height=16, width=32)
    video = InputVideo(path="in.mp4", digest="0" * 32)
    with JournalWriter(
        tmp_path / "run.jsonl", engine.journal_header(config, "session", video=video)
    ) as journal:
        session = engine.session(
            "sea", config=config, journal=journal, session_id="session", frames=moving_square(21)
        )
        assert len(list(session.stream())) == 2
    journal = read_journal(tmp_path / "run.jsonl")
    assert [line.input for line in journal.chunks] == [None, None]
    assert all(chunk.identical for chunk in replay(engine, journal, moving_square(21)))


@pytest.mark.parametrize(
    "changes", [dict(dtype="int3"), dict(data=b""), dict(data=b"12"), dict(shape=(1, 3, 5, 4))], ids=str
)
def test_an_input_that_is_none_is_refused(tmp_path: Path, changes: dict) -> None:
    path = tmp_path / "run.jsonl"
    record(path, 1, with_input=True)
    journal = read_journal(path)
    (line,) = journal.chunks
    broken = msgspec.structs.replace(line, input=msgspec.structs.replace(line.input, **changes))
    with pytest.raises((JournalError, EnvelopeRefused)):
        list(replay(tiny_engine(), replace(journal, chunks=(broken,))))


def test_an_input_that_ends_too_early_is_refused_rather_than_made_up(tmp_path: Path) -> None:
    record(tmp_path / "run.jsonl", 3, with_input=True)
    journal = read_journal(tmp_path / "run.jsonl")
    session = tiny_engine().session(
        "sea", config=journal.header.config, frames=moving_square(9, 2), session_id="again"
    )
    chunks = tiny_engine().stream(session).replay(map(_renamed, journal.chunks))
    assert next(chunks).index == 0
    with pytest.raises(EnvelopeRefused, match="ends before chunk 1"):
        next(chunks)


def _renamed(line: ChunkLine) -> ChunkLine:
    return msgspec.structs.replace(line, envelope=msgspec.structs.replace(line.envelope, session_id="again"))


@pytest.mark.parametrize("lost", [1, 5, 200])
def test_a_last_line_cut_short_is_survived_and_reported(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "run.jsonl"
    digests = record(path, 4)
    path.write_bytes(path.read_bytes()[:-lost])
    journal = read_journal(path)
    assert journal.cut_short
    assert [line.digest for line in journal.chunks] == digests[:3]
    assert all(chunk.identical for chunk in replay(tiny_engine(), journal))


def test_a_changed_digest_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    digests = record(path, 3)
    path.write_text(path.read_text().replace(digests[1], "0" * 32))
    assert [chunk.identical for chunk in replay(tiny_engine(), read_journal(path))] == [True, False, True]


def test_other_weights_are_refused(tmp_path: Path) -> None:
    record(tmp_path / "run.jsonl", 2)
    other = Engine("wan-tiny", weights="random:4", device="cpu", dtype="float32")
    with pytest.raises(JournalError, match="made with weights"):
        list(replay(other, read_journal(tmp_path / "run.jsonl")))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"{}\n",
        b"not json\n",
        b'{"kind":"header","version":99}\n',
        b"\x00\xff\n",
        b'{"a":' * 100_000 + b"\n",
    ],
    ids=["empty", "cut off", "no fields", "no json", "of another version", "no text", "nested"],
)
def test_what_is_no_journal_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(JournalError) as caught:
        read_journal(path)
    assert "\n" not in str(caught.value)


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:40] + b"\n" + lines[2])
    with pytest.raises(JournalError, match="line 2"):
        read_journal(path)


def test_an_existing_journal_is_not_overwritten_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, 1)
    with pytest.raises(JournalError, match="--overwrite"):
        record(path, 1)


FAST = Speed(blocks=True, round_keys=True, decoder=True)


@cache
def fast_engine() -> Engine:
    return Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32", speed=FAST)


def test_a_journal_says_which_speed_ups_made_it_and_replays_under_them_to_the_same_bits(
    tmp_path: Path,
) -> None:
    digests = record(tmp_path / "run.jsonl", 5, engine=fast_engine())
    journal = read_journal(tmp_path / "run.jsonl")
    assert journal.header.speed == FAST
    assert [chunk.chunk.digest for chunk in replay(fast_engine(), journal)] == digests
    assert differences(fast_engine(), journal.header) == []


def test_a_replay_without_the_speed_ups_runs_and_says_what_differs(tmp_path: Path) -> None:
    record(tmp_path / "run.jsonl", 3, engine=fast_engine())
    journal = read_journal(tmp_path / "run.jsonl")
    assert len(list(replay(tiny_engine(), journal))) == 3
    assert differences(tiny_engine(), journal.header) == ["speed: blocks,round_keys,decoder then, off now"]


def test_a_journal_that_says_nothing_of_speed_ups_was_made_without(tmp_path: Path) -> None:
    digests = record(tmp_path / "run.jsonl", 2)
    header, *rest = (tmp_path / "run.jsonl").read_text().splitlines()
    older = {name: value for name, value in json.loads(header).items() if name != "speed"}
    (tmp_path / "older.jsonl").write_text("\n".join([json.dumps(older), *rest, ""]))
    journal = read_journal(tmp_path / "older.jsonl")
    assert journal.header.speed == Speed()
    assert [chunk.chunk.digest for chunk in replay(tiny_engine(), journal)] == digests
