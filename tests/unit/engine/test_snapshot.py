"""A saved session goes on, here or elsewhere, as if it had never been away; what does not fit is refused in
one line."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from millstream.core.controls import Cut, Pause, Resume, SetPrompt, SetSteps, SetWindow
from millstream.core.errors import SnapshotError
from millstream.core.speed import Speed
from millstream.engine import snapshot, snapshot_parts
from millstream.engine.engine import Engine
from millstream.session.feed import LiveFeed
from millstream.session.session import Session

pytestmark = pytest.mark.slow

CHUNKS = 5


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def fingerprint(engine: Engine) -> str:
    return engine.model.fingerprint()


def digests(session: Session, chunks: int = CHUNKS) -> list[str]:
    return [chunk.digest for chunk in session.stream(chunks)]


def pixels(session: Session, chunks: int = CHUNKS) -> list[np.ndarray]:
    return [chunk.frames for chunk in session.stream(chunks)]


def saved(engine: Engine, session: Session, fingerprint: str, folder: Path) -> snapshot.Snapshot:
    path = folder / "saved.safetensors"
    snapshot.write(snapshot.capture(engine, session, fingerprint), path)
    return snapshot.read(path, engine, fingerprint)


def test_what_a_session_must_look_like_is_found_out_once(
    engine: Engine, fingerprint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes as long as a chunk, and those whose server died wait for it."""
    session = engine.session("sea")
    digests(session, 1)
    saved(engine, session, fingerprint, tmp_path)
    monkeypatch.setattr(snapshot_parts, "empty_vae", lambda spec: pytest.fail("it is walked again"))
    snapshot.check(tmp_path / "saved.safetensors", engine, fingerprint)
    session.close()


@pytest.mark.parametrize(
    "changes",
    [
        dict(),
        dict(window=9, sink=2, positions="windowed"),
        dict(anchor="decoded"),
        dict(window=6, kv_bias=0.8, context_noise=20.0),
        dict(steps=(1000,), first_steps=(1000, 500), sampler="unipc", frames_per_chunk=1),
    ],
    ids=str,
)
def test_a_restored_session_goes_on_to_the_same_bits(
    engine: Engine, fingerprint: str, tmp_path: Path, changes: dict[str, object]
) -> None:
    """With a blend under way and a control still waiting."""
    original = engine.session("sea", **changes)
    original.control(SetPrompt(prompt="storm", mode="blend", chunks=5), at_chunk=4)
    original.control(Cut(id="later"), at_chunk=9)
    digests(original, 6)
    revived = snapshot.revive(saved(engine, original, fingerprint, tmp_path), engine, "another")
    for before, after in zip(original.stream(CHUNKS), revived.stream(CHUNKS), strict=True):
        assert (after.index, after.epoch, after.prompts, after.receipts) == (
            before.index, before.epoch, before.prompts, before.receipts,
        )  # fmt: skip
        assert after.digest == before.digest
        assert np.array_equal(after.frames, before.frames)


def test_no_type_is_looked_into_when_a_header_is_read(
    engine: Engine, fingerprint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads that were the first to do so crashed the process: two people who came back to a server just
    started."""
    saved(engine, engine.session("sea"), fingerprint, tmp_path)
    (path,) = tmp_path.iterdir()
    monkeypatch.setattr(msgspec.json, "decode", lambda *_, **__: pytest.fail("the type is looked into"))
    assert snapshot.read_header(path).config == engine.spec.stream


def test_one_that_was_paused_or_steered_stays_so(engine: Engine, fingerprint: str, tmp_path: Path) -> None:
    original = engine.session("sea")
    digests(original, 2)
    original.control(SetSteps(steps=(1000, 700, 300)))
    original.control(SetWindow(window=6))
    digests(original, 1)
    original.control(Pause())
    assert digests(original) == []
    revived = snapshot.revive(saved(engine, original, fingerprint, tmp_path), engine, "another")
    assert digests(revived) == []
    for session in (original, revived):
        session.control(Resume())
    assert digests(revived) == digests(original)


def test_one_that_never_ran_is_a_fresh_one(engine: Engine, fingerprint: str, tmp_path: Path) -> None:
    revived = snapshot.revive(
        saved(engine, engine.session("sea", seed=4), fingerprint, tmp_path), engine, "another"
    )
    assert digests(revived) == digests(engine.session("sea", seed=4))


def test_a_restyled_video_goes_on_with_its_motion(engine: Engine, fingerprint: str, tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (9 + 12 * 5, 32, 32, 3), dtype=np.uint8)
    original = engine.session("sea", frames=iter(frames))
    digests(original, 2)
    feed = LiveFeed((32, 32))
    for frame in frames[9 + 12 :]:
        feed.push(frame)
    held = saved(engine, original, fingerprint, tmp_path)
    assert digests(snapshot.revive(held, engine, "another", feed=feed), 3) == digests(original, 3)


def test_the_copy_does_not_change_when_the_session_goes_on(engine: Engine, fingerprint: str) -> None:
    original = engine.session("sea")
    digests(original, 3)
    taken = snapshot.capture(engine, original, fingerprint)
    expected = digests(original, 3)
    assert digests(snapshot.revive(taken, engine, "first"), 3) == expected
    assert digests(snapshot.revive(taken, engine, "second"), 3) == expected


def test_closing_a_restored_session_frees_all_it_held(engine: Engine, fingerprint: str) -> None:
    before = set(engine.generator.caches)
    with engine.session("sea") as original:
        digests(original, 1)
        taken = snapshot.capture(engine, original, fingerprint)
    with snapshot.revive(taken, engine, "another"):
        assert "another" in engine.generator.caches
    assert set(engine.generator.caches) == before


@pytest.fixture(scope="module")
def file(engine: Engine, fingerprint: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with engine.session("sea") as session:
        digests(session, 2)
        path = tmp_path_factory.mktemp("snapshots") / "one.safetensors"
        snapshot.write(snapshot.capture(engine, session, fingerprint), path)
    return path


def header_of(path: Path) -> str:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size])["__metadata__"][snapshot.KEY]


def forged(
    file: Path, folder: Path, header: dict[str, object] | None = None, **tensors: torch.Tensor | None
) -> Path:
    """The file with some of its header or its tensors replaced; None takes one away."""
    held = load_file(file) | tensors
    spelled = json.dumps(json.loads(header_of(file)) | (header or {}))
    save_file(
        {k: v for k, v in held.items() if v is not None},
        folder / "forged.safetensors",
        metadata={snapshot.KEY: spelled},
    )
    return folder / "forged.safetensors"


def test_other_weights_another_model_and_another_dtype_are_refused(
    engine: Engine, fingerprint: str, file: Path
) -> None:
    with pytest.raises(SnapshotError, match="other weights"):
        snapshot.read(file, engine, "somebody else's")
    with pytest.raises(SnapshotError, match="saved with wan-tiny"):
        snapshot.read(file, Engine("wan-mini", weights="random", device="cpu", dtype="float32"), fingerprint)
    with pytest.raises(SnapshotError, match="saved in torch"):
        snapshot.read(
            file, Engine("wan-tiny", weights="random:3", device="cpu", dtype="bfloat16"), fingerprint
        )


def test_tensors_of_another_shape_or_name_are_refused(
    engine: Engine, fingerprint: str, file: Path, tmp_path: Path
) -> None:
    changes: list[dict[str, torch.Tensor | None]] = [
        {"ring.k": torch.zeros(3)},
        {"ring.v": None},
        {"cross.k.0": torch.zeros(1, 2, 3, 4)},
        {"history.latents.3": torch.zeros(1)},
        {"something": torch.zeros(1)},
        {"ring.nonsense": torch.zeros(1)},
        {"decoder.0": torch.zeros(1, 4, 2, 4, 5)},
        {"decoder.0": None},
        {"decoder.24": torch.zeros(1)},
        {"decoder.x": torch.zeros(1)},
        {"encoder.0": torch.zeros(1, 3, 2, 32, 32)},
        {"motion.last": torch.zeros(8, 8, 3)},
        {"ring.k": torch.zeros(2, 1, 36, 2, 24, dtype=torch.bfloat16)},
        {"history.latents.0": torch.zeros(1, 4, 4, 4, dtype=torch.float64)},
        {"history.latents.900": torch.zeros(1, 4, 4, 4)},
        {"history.latents.\u0663": torch.zeros(1, 4, 4, 4)},
        {f"history.latents.{'9' * 5000}": torch.zeros(1, 4, 4, 4)},
        {"history.pixels.2": torch.zeros(1, 3, 32, 32), "history.latents.2": None},
        {f"history.latents.0{number}": torch.zeros(1, 4, 4, 4) for number in range(100, 130)},
    ]
    for change in changes:
        with pytest.raises(SnapshotError, match="not a whole snapshot") as refusal:
            snapshot.check(forged(file, tmp_path, None, **change), engine, fingerprint)
        assert len(str(refusal.value)) < 250, change
        assert "\n" not in str(refusal.value)


def test_a_forged_snapshot_is_refused_before_a_tensor_of_it_is_read(
    engine: Engine, fingerprint: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table promises megabytes where the VAE keeps kilobytes; nothing of that is ever allocated."""
    path = forged(file, tmp_path, None, **{"decoder.3": torch.zeros(1, 16, 2, 290, 290)})
    read: list[str] = []
    opened = snapshot.safe_open

    class Watched:
        def __init__(self, *args: object, **options: object) -> None:
            self._file = opened(*args, **options)

        def __enter__(self) -> Watched:
            self._file.__enter__()
            return self

        def __exit__(self, *error: object) -> None:
            self._file.__exit__(*error)

        def __getattr__(self, name: str) -> object:
            if name == "get_tensor":
                read.append(name)
            return getattr(self._file, name)

    monkeypatch.setattr(snapshot, "safe_open", Watched)
    with pytest.raises(SnapshotError, match=r"decoder\.3 is float32 \(1, 16, 2, 290, 290\), not"):
        snapshot.read(path, engine, fingerprint)
    assert read == []


@pytest.mark.parametrize(
    "contents",
    [
        b"[" * 60_000,
        b'{"__metadata__":' * 5_000,
        b'{"__metadata__":{"millstream":"' + b"[" * 60_000 + b'"}}',
        b"\xff" * 100,
        b"[]",
    ],
    ids=["nested", "nested maps", "nested header", "no text", "no map"],
)
def test_a_table_of_contents_that_is_none_is_refused_in_one_line(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "forged.safetensors"
    path.write_bytes(struct.pack("<Q", len(contents)) + contents)
    with pytest.raises(SnapshotError, match="not a snapshot"):
        snapshot.read_header(path)


@pytest.mark.parametrize("size", [0, 7])
def test_a_file_that_ends_at_once_is_refused_by_its_size(tmp_path: Path, size: int) -> None:
    (tmp_path / "cut.safetensors").write_bytes(bytes(size))
    with pytest.raises(SnapshotError, match=f"not a snapshot: it has {size} bytes in all"):
        snapshot.read_header(tmp_path / "cut.safetensors")


@pytest.mark.parametrize("model", ["wan-tiny", "wan-mini", "brook"])
def test_what_a_vae_keeps_is_known_without_running_it(model: str, tmp_path: Path) -> None:
    engine = Engine(model, weights="random", device="cpu", dtype="float32")
    frames = np.zeros((9, 64, 96, 3), np.uint8)
    with engine.session(
        "sea", frames=iter(frames), height=64, width=96, window=6, sink=2, positions="windowed"
    ) as session:
        digests(session, 1)
        taken = snapshot.capture(engine, session, "")
    assert {"encoder.0", "decoder.0", "ring.sink_k"} <= set(taken.tensors)
    snapshot.write(taken, tmp_path / "one.safetensors")
    assert snapshot.check(tmp_path / "one.safetensors", engine, "") == taken.header


def test_a_window_that_the_timeline_does_not_have_is_refused(
    engine: Engine, fingerprint: str, file: Path, tmp_path: Path
) -> None:
    """Memory is promised for the configuration's window; the timeline must not ask for another behind its
    back."""
    timeline = json.loads(header_of(file))["timeline"]
    for change in ({"window": 1000}, {"steps": [1000.0, 900.0, 800.0, 700.0, 600.0]}):
        with pytest.raises(SnapshotError, match="differ"):
            snapshot.check(forged(file, tmp_path, {"timeline": timeline | change}), engine, fingerprint)
    ring = json.loads(header_of(file))["ring"]
    for wrong in ({"frames": ring["frames"][1:]}, {"written": -1}, {"frames": [-7, *ring["frames"][1:]]}):
        with pytest.raises(SnapshotError, match="slots"):
            snapshot.check(forged(file, tmp_path, {"ring": ring | wrong}), engine, fingerprint)


def test_what_the_next_chunk_builds_on_must_be_there(
    engine: Engine, fingerprint: str, file: Path, tmp_path: Path
) -> None:
    """It had been let in, and failed in its first chunk."""
    ring = json.loads(header_of(file))["ring"]
    config = json.loads(header_of(file))["config"]
    held = load_file(file)
    gone = {name: None for name in held if name.startswith(("ring.", "cross."))}
    wrong: list[tuple[dict[str, object], dict[str, torch.Tensor | None]]] = [
        ({}, {"history.latents.5": None}),
        ({}, {name: None for name in held if name.startswith("decoder.")}),
        ({"ring": None}, gone),
        ({"ring": ring | {"frames": [-1] * len(ring["frames"])}}, {}),
        ({"ring": ring | {"frames": [frame + 1 for frame in ring["frames"]]}}, {}),
        ({"config": config | {"anchor": "decoded"}}, {}),
    ]
    for header, tensors in wrong:
        with pytest.raises(SnapshotError, match="not a whole snapshot"):
            snapshot.check(forged(file, tmp_path, header, **tensors), engine, fingerprint)


@pytest.mark.parametrize("taken_away", ["history.pixels.3", "history.pixels.5", "decoder.0"])
def test_a_session_with_decoded_anchors_needs_the_picture_of_each_frame(
    engine: Engine, fingerprint: str, tmp_path: Path, taken_away: str
) -> None:
    with engine.session("sea", anchor="decoded") as session:
        digests(session, 2)
        snapshot.write(snapshot.capture(engine, session, fingerprint), tmp_path / "one.safetensors")
    assert snapshot.check(tmp_path / "one.safetensors", engine, fingerprint).config.anchor == "decoded"
    with pytest.raises(SnapshotError, match=f"{taken_away} is missing"):
        snapshot.check(
            forged(tmp_path / "one.safetensors", tmp_path, None, **{taken_away: None}), engine, fingerprint
        )


def test_a_timeline_that_cannot_be_is_refused(
    engine: Engine, fingerprint: str, file: Path, tmp_path: Path
) -> None:
    timeline = json.loads(header_of(file))["timeline"]
    blend = {"before": timeline["prompts"], "after": timeline["prompts"], "chunks": 0, "done": 0}
    tiny = [{"text": "sea", "weight": 5e-324}]
    vanishing = {"before": tiny, "after": tiny, "chunks": 2, "done": 0}
    wrong = [
        {"steps": []}, {"seed": -1}, {"window": 0}, {"epoch": -2}, {"blend": blend}, {"prompts": []}, {"kv_bias": 0},
        {"blend": vanishing}, {"prompts": tiny},
    ]  # fmt: skip
    for change in wrong:
        with pytest.raises(SnapshotError):
            snapshot.read(forged(file, tmp_path, {"timeline": timeline | change}), engine, fingerprint)


@settings(max_examples=200)
@given(place=st.integers(0, 2000), value=st.integers(0, 255), length=st.none() | st.integers(0, 3000))
def test_a_damaged_file_is_refused_or_harmless(
    engine: Engine, fingerprint: str, file: Path, place: int, value: int, length: int | None
) -> None:
    data = bytearray(file.read_bytes())
    data[place] = value
    damaged = file.with_name("damaged.safetensors")
    damaged.write_bytes(bytes(data[:length]))
    said = ""
    try:
        snapshot.revive(snapshot.read(damaged, engine, fingerprint), engine, "damaged").close()
    except SnapshotError as error:
        said = str(error)
    assert "\n" not in said


@pytest.fixture(scope="module")
def fast() -> Engine:
    speed = Speed(blocks=True, round_keys=True, decoder=True, paired_commits=True)
    return Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32", speed=speed)


@pytest.mark.parametrize("changes", [dict(), dict(window=9, sink=2, positions="windowed")], ids=str)
@pytest.mark.parametrize("saved_fast", [True, False], ids=["fast to plain", "plain to fast"])
def test_a_session_goes_on_under_other_speed_ups_as_it_would_have_to_rounding(
    engine: Engine,
    fast: Engine,
    fingerprint: str,
    tmp_path: Path,
    saved_fast: bool,
    changes: dict[str, object],
) -> None:
    """The state they hold between chunks is the same, a commit that was put off included."""
    here, there = (fast, engine) if saved_fast else (engine, fast)
    original = here.session("sea", height=16, width=32, **changes)
    digests(original, 5)
    path = tmp_path / "saved.safetensors"
    snapshot.write(snapshot.capture(here, original, here.fingerprint()), path)
    revived = snapshot.revive(snapshot.read(path, there, fingerprint), there, f"{saved_fast}{len(changes)}")
    for before, after in zip(pixels(original, 4), pixels(revived, 4), strict=True):
        assert np.abs(before.astype(int) - after.astype(int)).max() <= 1


def test_one_that_owes_a_commit_goes_on_to_the_bits_it_would_have_had_with_it_made(
    fast: Engine, fingerprint: str
) -> None:
    original = fast.session("sea", height=16, width=32)
    digests(original, 5)
    assert fast.generator.caches[original.id].owed is not None
    taken = snapshot.capture(fast, original, fingerprint)
    assert digests(snapshot.revive(taken, fast, "after a commit"), 3) == digests(original, 3)
