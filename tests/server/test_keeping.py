"""What is kept: bounded, whole, and found by names the server made up."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import msgspec
import numpy as np
import pytest

from millstream.core.errors import ConfigError, JournalError, UnknownFile, VideoError
from millstream.core.files import Draft
from millstream.engine.engine import Engine
from millstream.server.sessions import archive as archives
from millstream.server.sessions.archive import Archive
from millstream.server.sessions.file_store import NAME, FileStore, Kind, StoreLimits
from millstream.serving.notices import Noted, Notice
from millstream.session.journal import JournalWriter, read_journal
from millstream.video.recording import MAX_WAITING, Recorded, Recording
from millstream.video.writer import VideoWriter


def keep(store: FileStore, size: int = 10) -> str:
    name, path = store.new("recordings")
    path.write_bytes(b"x" * size)
    store.add("recordings", name)
    return name


def test_names_are_unguessable_and_lead_into_the_folder(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    made = [store.new("journals") for _ in range(100)]
    assert len({name for name, _ in made}) == 100
    assert all(NAME.fullmatch(name) and path.parent == tmp_path / "journals" for name, path in made)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../secret", "/etc/passwd", "a\0b", "nobody-made-this-name1"]
)
def test_a_name_that_was_not_made_here_is_not_found(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    store = FileStore(tmp_path / "data")
    with pytest.raises(UnknownFile):
        store.find("recordings", name)


def test_past_a_number_of_files_or_bytes_the_oldest_go(tmp_path: Path) -> None:
    few = FileStore(tmp_path / "few", StoreLimits(max_files=3))
    names = [keep(few) for _ in range(5)]
    assert [few.get("recordings", name) is not None for name in names] == [False, False, True, True, True]
    assert len(list((tmp_path / "few" / "recordings").iterdir())) == 3
    small = FileStore(tmp_path / "small", StoreLimits(max_bytes=100))
    names = [keep(small, 40) for _ in range(4)]
    assert [small.get("recordings", name) is not None for name in names] == [False, False, True, True]
    large = keep(small, 1000)
    assert small.find("recordings", large).num_bytes == 1000, "the newest is kept whatever its size"


def test_a_server_that_starts_again_finds_what_it_had_oldest_first(tmp_path: Path) -> None:
    first = FileStore(tmp_path)
    names = [keep(first) for _ in range(3)]
    for age, name in enumerate(reversed(names)):
        os.utime(first.find("recordings", name).path, (1000 - age, 1000 - age))
    (tmp_path / "recordings" / "somebody else's.mp4").write_bytes(b"")
    again = FileStore(tmp_path, StoreLimits(max_files=3))
    newest = keep(again)
    assert [again.get("recordings", name) is not None for name in (*names, newest)] == [
        False,
        True,
        True,
        True,
    ]
    assert (tmp_path / "recordings" / "somebody else's.mp4").exists()


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--data"):
        FileStore(tmp_path / "file")


OPEN_WITHOUT_ROOM = """
import resource, sys
from pathlib import Path
from millstream.core.errors import ConfigError
from millstream.server.sessions.file_store import FileStore

resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
try:
    FileStore(Path(sys.argv[1]))
except ConfigError as error:
    print(error)
"""


def test_a_folder_is_tried_for_real_not_by_its_permissions(tmp_path: Path) -> None:
    FileStore(tmp_path)
    command = [sys.executable, "-c", OPEN_WITHOUT_ROOM, str(tmp_path)]
    (line,) = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert line.startswith(f"cannot keep files in {tmp_path}: {os.strerror(errno.EFBIG)}; ")
    assert "--data" in line
    assert all(os.listdir(folder) == [] for folder in tmp_path.iterdir())


def test_what_is_being_written_counts_against_the_limits(tmp_path: Path) -> None:
    store = FileStore(tmp_path, StoreLimits(max_bytes=100))
    names = [keep(store, 40), keep(store, 40)]
    draft = Draft(tmp_path / "recordings")
    (draft.path / "film.mp4").write_bytes(b"x" * 50)
    store.new("recordings")
    assert [store.get("recordings", name) is not None for name in names] == [False, True]
    draft.remove()


def left_by_a_killed_server(folder: Path, kind: Kind, data: bytes) -> str:
    """A draft nobody holds, with the file it was for."""
    name, path = FileStore(folder).new(kind)
    draft = folder / kind / f".millstream-{secrets.token_hex(8)}.partial"
    draft.mkdir()
    (draft / path.name).write_bytes(data)
    (draft / ".tmpAbCdEf").write_bytes(b"a library's own")
    return name


def test_of_what_a_killed_server_left_a_start_keeps_what_is_whole_and_removes_the_rest(
    tmp_path: Path,
) -> None:
    with VideoWriter(tmp_path / "film.mp4", fps=16, growing=True) as writer:
        for _ in range(8):
            writer.write(frames(16))
        (draft,) = (path for path in tmp_path.iterdir() if path.is_dir())
        film = (draft / "film.mp4").read_bytes()
    data = tmp_path / "data"
    recording = left_by_a_killed_server(data, "recordings", film[:-100])
    hopeless = left_by_a_killed_server(data, "recordings", film[:500])
    journal = left_by_a_killed_server(data, "journals", b'{"kind":"header"}\n{"kind":"chunk"}\n{"ki')
    snapshot = left_by_a_killed_server(data, "snapshots", b"x" * 1000)
    store = FileStore(data)
    assert 16 <= length(store.find("recordings", recording).path) < 128
    assert store.find("journals", journal).path.read_bytes() == b'{"kind":"header"}\n{"kind":"chunk"}\n'
    assert store.get("recordings", hopeless) is None
    assert store.get("snapshots", snapshot) is None
    assert sorted(path.name for path in data.rglob("*.*")) == sorted([f"{recording}.mp4", f"{journal}.jsonl"])


def test_a_start_leaves_alone_what_another_server_is_writing(tmp_path: Path) -> None:
    _, path = FileStore(tmp_path).new("snapshots")
    draft = Draft(path.parent)
    (draft.path / path.name).write_bytes(b"half")
    FileStore(tmp_path)
    draft.publish(path.name, path)
    draft.remove()
    assert path.read_bytes() == b"half"


def frames(count: int = 4) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (count, 32, 32, 3), dtype=np.uint8)


def recorded(
    path: Path, play: Callable[[Recording, ThreadPoolExecutor], Awaitable[None]], **options: float
) -> Recorded:
    async def main() -> Recorded:
        with ThreadPoolExecutor(1) as pool:
            recording = Recording(path, fps=16.0, pool=pool, **options)
            try:
                await play(recording, pool)
            finally:
                outcome = await asyncio.gather(recording.finish(), return_exceptions=True)
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    return asyncio.run(main())


def length(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_a_recording_holds_what_it_was_given(tmp_path: Path) -> None:
    async def play(recording: Recording, pool: ThreadPoolExecutor) -> None:
        for _ in range(3):
            recording.add(frames(), 16.0)
        assert not recording.path.exists(), "it appears when it is whole"

    assert recorded(tmp_path / "clip.mp4", play) == Recorded(12, 0)
    assert length(tmp_path / "clip.mp4") == 12
    assert len(list(tmp_path.iterdir())) == 1


def test_a_slow_disk_leaves_chunks_out_and_holds_nobody_up(tmp_path: Path) -> None:
    gate = threading.Event()

    async def play(recording: Recording, pool: ThreadPoolExecutor) -> None:
        pool.submit(gate.wait)
        await asyncio.sleep(0)
        for _ in range(MAX_WAITING + 5):
            recording.add(frames(), 16.0)
        gate.set()

    found = recorded(tmp_path / "clip.mp4", play)
    assert found == Recorded(4 * MAX_WAITING, 5)
    assert length(tmp_path / "clip.mp4") == found.num_frames


def test_a_film_has_an_end(tmp_path: Path) -> None:
    async def play(recording: Recording, pool: ThreadPoolExecutor) -> None:
        fed = []
        for _ in range(6):
            recording.add(frames(), 16.0)
            fed.append(recording.fed_at)
        assert fed[3] > fed[2] > fed[1] > fed[0]
        assert fed[5] == fed[4] == fed[3], "what it does not take does not feed it"

    assert recorded(tmp_path / "clip.mp4", play, max_seconds=1.0) == Recorded(16, 2)


def test_nothing_recorded_is_no_file(tmp_path: Path) -> None:
    async def play(recording: Recording, pool: ThreadPoolExecutor) -> None:
        return

    with pytest.raises(VideoError):
        recorded(tmp_path / "clip.mp4", play)
    assert list(tmp_path.iterdir()) == []


def test_frames_of_another_size_end_the_recording_not_the_program(tmp_path: Path) -> None:
    async def play(recording: Recording, pool: ThreadPoolExecutor) -> None:
        recording.add(frames(), 16.0)
        recording.add(np.zeros((4, 64, 64, 3), np.uint8), 16.0)
        recording.add(frames(), 16.0)

    kept = recorded(tmp_path / "clip.mp4", play)
    assert (kept.num_frames, kept.cut_short) == (4, True)
    assert [path.name for path in tmp_path.iterdir()] == ["clip.mp4"]


RECORD_UNDER_A_LIMIT = """
import asyncio, resource, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
from millstream.video.recording import Recording

async def main():
    failures = []
    with ThreadPoolExecutor(1) as pool:
        recording = Recording(Path(sys.argv[1]), fps=16.0, pool=pool, failed=lambda: failures.append("failed"))
        rng = np.random.default_rng(0)
        while not failures:
            recording.add(rng.integers(0, 255, (16, 32, 32, 3), dtype=np.uint8), 16.0)
            await asyncio.sleep(0.01)
        print(failures, (await recording.finish()).cut_short)

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
asyncio.run(main())
"""


def test_a_recording_on_a_disk_that_fills_says_so_once_and_is_kept_as_far_as_it_came(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RECORD_UNDER_A_LIMIT, str(tmp_path / "clip.mp4")]
    assert (
        subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout == "['failed'] True\n"
    )
    assert length(tmp_path / "clip.mp4") >= 16
    assert os.listdir(tmp_path) == ["clip.mp4"]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine("wan-tiny", weights="random", device="cpu", dtype="float32")


def test_a_journal_that_cannot_go_on_ends_and_its_session_does_not(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(engine, FileStore(tmp_path))
    journal = archive.journal("a", engine.spec.stream)
    told: list[Notice] = []
    journal.tell = told.append
    write = JournalWriter.write
    written = []

    def full_after_two(writer: JournalWriter, *line: object) -> None:
        if len(written) == 2:
            raise JournalError("cannot write: no space left")
        written.append(line)
        write(writer, *line)  # type: ignore[arg-type]

    monkeypatch.setattr(JournalWriter, "write", full_after_two)
    with engine.session("sea", journal=journal, session_id="a") as session:
        assert len(list(session.stream(4))) == 4
        assert [type(notice) for notice in told] == [Noted]
        assert "its journal ends before chunk 2" in str(told)
    asyncio.run(archive.keep_journal(journal, owner="somebody"))
    archive.close()
    assert len(read_journal(archive.store.find("journals", journal.name).path).chunks) == 2


def test_a_journal_has_an_end(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive(engine, FileStore(tmp_path))
    journal = archive.journal("a", engine.spec.stream)
    told: list[Notice] = []
    journal.tell = told.append
    header = msgspec.json.encode(engine.journal_header(engine.spec.stream, "a"))
    monkeypatch.setattr(archives, "MAX_JOURNAL_BYTES", len(header) + 1000)  # a line has more than 500 bytes
    with engine.session("sea", journal=journal, session_id="a") as session:
        assert len(list(session.stream(4))) == 4
    asyncio.run(archive.keep_journal(journal, owner="somebody"))
    archive.close()
    assert len(read_journal(journal.path).chunks) == 2
    assert [type(notice) for notice in told] == [Noted], "once"


def test_a_recording_whose_rate_changes_plays_each_chunk_at_its_own(tmp_path: Path) -> None:
    async def record() -> None:
        with ThreadPoolExecutor(1) as pool:
            recording = Recording(tmp_path / "film.mp4", fps=16.0, pool=pool)
            for fps in (16.0, 8.0):
                recording.add(frames(), fps)
            await recording.finish()

    asyncio.run(record())
    with av.open(str(tmp_path / "film.mp4")) as film:
        times = [float(frame.pts * frame.time_base) for frame in film.decode(video=0)]
    count = len(times) // 2
    assert times[count] == pytest.approx(count / 16.0, abs=1e-3)
    assert times[-1] == pytest.approx(count / 16.0 + (count - 1) / 8.0, abs=1e-3)
