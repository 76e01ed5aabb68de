"""A stream begins from a picture: what is shown first, what is written down, and what is refused."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millstream.core.conditions import STILL, Picture
from millstream.core.config import ConditionsConfig
from millstream.core.controls import (
    AnyControl,
    Cut,
    SetActions,
    SetCamera,
    SetImage,
    SetPrompt,
    SetSeed,
    SetWindow,
)
from millstream.core.errors import ControlError, EnvelopeRefused
from millstream.core.rewind import RewindConfig
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.engine.replay import replay
from millstream.ops.pictures import to_pictures
from millstream.ops.pixels import from_bytes
from millstream.session.chunk import Chunk, PendingChunk
from millstream.session.journal import ChunkLine, InputLatents, JournalWriter, read_journal
from millstream.session.session import Session
from millstream.session.timeline import MAX_PICTURES
from tests.unit.session.test_session import moving_square

pytestmark = pytest.mark.slow

HEIGHT = 16
WIDTH = 32
SMALL = dict(height=HEIGHT, width=WIDTH, window=9)
AHEAD = (*STILL[:11], 0.5)


@cache
def engine_that_takes(conditions: bool) -> Engine:
    """An untrained one that keeps what a session needs to go back."""
    limits = RewindConfig(states=3, every=3, latents=24)
    model = "wan-tiny-world" if conditions else "wan-tiny"
    return Engine(model, weights="random:3", device="cpu", dtype="float32", rewind=limits)


@pytest.fixture(params=[False, True], ids=["words alone", "keys and camera"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return engine_that_takes(request.param)


def picture(num_frames: int = 1, seed: int = 0) -> Picture:
    pixels = np.random.default_rng(seed).integers(0, 256, (num_frames, HEIGHT, WIDTH, 3), dtype=np.uint8)
    return Picture.of(pixels.tobytes(), height=HEIGHT, width=WIDTH, num_frames=num_frames)


def encoded(engine: Engine, shown: Picture) -> torch.Tensor:
    shape = (shown.num_frames, HEIGHT, WIDTH, 3)
    frames = torch.frombuffer(bytearray(shown.pixels()), dtype=torch.uint8).view(shape)
    with torch.inference_mode():
        latents, _ = engine.model.vae.encode(from_bytes(frames.permute(0, 3, 1, 2))[None])
    return latents


def begun(engine: Engine, shown: Picture | None = None, **changes: object) -> Session:
    session = engine.session("sea", **(SMALL | changes))
    session.control(SetImage(picture=shown or picture()))
    return session


def digests(chunks: list[Chunk]) -> list[str]:
    return [chunk.digest for chunk in chunks]


@pytest.mark.parametrize(("num_frames", "latents"), [(1, 1), (9, 3), (21, 6)])
def test_what_was_given_is_shown_first(engine: Engine, num_frames: int, latents: int) -> None:
    shown = picture(num_frames)
    with begun(engine, shown) as session:
        first, second = session.stream(2)
    given = encoded(engine, shown)
    assert given.shape[1] == latents
    with torch.inference_mode():
        expected, _ = engine.model.vae.decode(given)
    difference = first.frames[:num_frames].astype(int) - to_pictures(expected[0]).numpy()
    assert abs(difference).max() <= (latents > 3), "a clip is decoded in pieces, equal but for rounding"
    assert (len(first.frames), len(second.frames)) == (num_frames + 12, 12)
    assert (first.epoch, second.epoch) == (0, 0)


def test_its_first_chunk_says_all_of_it(engine: Engine) -> None:
    with begun(engine, picture(9)) as session:
        plan = session.decide()
        assert plan is not None
        envelope = plan.envelope
        envelope.validate()
        assert envelope.begin_from is not None
        assert (envelope.begin_from.frames, envelope.begin_from.digest) == (3, picture(9).digest)
        assert (envelope.start_frame, envelope.context_indices) == (3, (0, 1, 2))
        assert envelope.num_shown == plan.real_frames == 21
        parcel = session.prepare(plan)
        parcel.validate()
        assert parcel.context_frames is not None
        assert torch.equal(parcel.context_frames, encoded(engine, picture(9)))
        assert len(envelope.context_conditions) == (3 if session.timeline.takes.camera else 0)


def test_in_the_middle_of_a_stream_it_counts_one_epoch_more(engine: Engine) -> None:
    with engine.session("sea", **SMALL) as session:
        list(session.stream(2))
        session.control(SetImage(picture=picture(), id="photo"))
        chunk, after = session.stream(2)
        assert (chunk.epoch, after.epoch, len(chunk.frames)) == (1, 1, 13)
        assert [receipt.control_id for receipt in chunk.receipts] == ["photo"]
        assert not session.ended


def test_a_cut_at_the_same_chunk_leaves_the_picture(engine: Engine) -> None:
    for controls in (
        (SetImage(picture=picture()), Cut()),
        (Cut(), SetImage(picture=picture())),
        (SetImage(picture=picture()), SetPrompt(prompt="storm", mode="cut")),
    ):
        with engine.session("sea", **SMALL) as session:
            list(session.stream(1))
            for control in controls:
                session.control(control)
            (chunk,) = session.stream(1)
            assert (chunk.epoch, len(chunk.frames)) == (1, 13)


def test_a_blend_moves_towards_the_picture_and_the_epoch_goes_on(engine: Engine) -> None:
    shown = picture()
    with engine.session("sea", **SMALL) as session:
        list(session.stream(1))
        session.control(SetImage(picture=shown, mode="blend", chunks=3))
        lines = list[ChunkLine]()
        for _ in range(4):
            plan = session.decide()
            assert plan is not None
            lines.append(ChunkLine(envelope=plan.envelope, digest=""))
            chunk = PendingChunk(session, plan)
            (delivery,) = engine.transport.post([session.prepare(plan)]).result()
            session.receive(chunk, delivery)
            session.finish(chunk)
    scales = [line.envelope.noise_scale for line in lines]
    assert scales == [0.75, 0.5, 0.25, 1.0]
    assert [bool(line.envelope.towards) for line in lines] == [True, True, True, False]
    assert {line.envelope.cache_epoch for line in lines} == {0}


def test_a_journal_has_the_latents_and_forces_them(engine: Engine, tmp_path: Path) -> None:
    """A stream that a picture began is, to the bit, one whose first latents were forced by a journal."""
    shown = picture(5)
    path = tmp_path / "run.jsonl"
    chunks = recorded(engine, path, [(0, SetImage(picture=shown))], 3)
    journal = read_journal(path)
    (first, *_) = journal.chunks
    assert first.input is not None
    assert torch.equal(first.input.latents(), encoded(engine, shown))
    forced = msgspec.structs.replace(first, input=InputLatents.of(encoded(engine, shown), 17))
    session = engine.session("sea", config=journal.header.config)
    again = list(engine.stream(session).replay([forced, *journal.chunks[1:]]))
    assert digests(again) == digests(chunks)
    for found, expected in zip(again, chunks, strict=True):
        assert np.array_equal(found.frames, expected.frames)
    without = msgspec.structs.replace(first, input=None)
    with pytest.raises(EnvelopeRefused, match="begins from a picture that is not there"):
        engine.session("sea", config=journal.header.config).recall(without)


def test_a_generator_that_has_lost_all_is_given_all(engine: Engine) -> None:
    """As on a new mesh: the chunk that begins, and one after it, while the window holds the picture."""
    expected = begun(engine, window=12)
    wanted = digests(list(expected.stream(3)))
    for lost_at in range(3):
        session = begun(engine, window=12)
        found = list[str]()
        for index in range(3):
            plan = session.decide()
            assert plan is not None
            parcel = session.prepare(plan)
            if index == lost_at:
                engine.generator.release(session.id)
                parcel = session.mend(parcel)
                parcel.validate()
                context = parcel.envelope.context_indices
                steered = session.timeline.takes.camera
                assert len(parcel.envelope.context_conditions) == (len(context) if steered else 0)
            chunk = PendingChunk(session, plan)
            (delivery,) = engine.transport.post([parcel]).result()
            session.receive(chunk, delivery)
            found.append(session.finish(chunk).digest)
        assert found == wanted
        session.close()


def test_a_late_chunk_of_the_epoch_before_is_not_taken_into_the_new_one(engine: Engine) -> None:
    with engine.session("sea", **SMALL) as session:
        list(session.stream(1))
        old = session.decide()
        assert old is not None
        late = PendingChunk(session, old)
        (delivery,) = engine.transport.post([session.prepare(old)]).result()
        session.control(SetImage(picture=picture()))
        new = session.decide()
        assert new is not None
        parcel = session.prepare(new)
        session.receive(late, delivery)
        assert late.delivery is None, "it is not to be shown"
        chunk = PendingChunk(session, new)
        (delivery,) = engine.transport.post([parcel]).result()
        session.receive(chunk, delivery)
        assert torch.equal(session.state().history.tensors["latents.0"], encoded(engine, picture())[:, 0])


@pytest.mark.parametrize("anchor", ["latent", "decoded"])
def test_anchors_and_a_window_that_slides_over_the_picture_go_on(engine: Engine, anchor: str) -> None:
    with begun(engine, picture(5), anchor=anchor) as session:
        assert [len(chunk.frames) for chunk in session.stream(5)] == [17, 12, 12, 12, 12]


def test_a_model_trained_on_a_first_frame_has_it_within_its_first_chunk() -> None:
    engine = Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32")
    engine._parts = replace(engine.parts, takes=ConditionsConfig(image_entry="within"))
    with begun(engine) as session:
        list(session.stream(1))
        session.control(SetImage(picture=picture(5, seed=1)))
        plan = session.decide()
        assert plan is not None
        assert (plan.envelope.given_frames, plan.envelope.start_frame, plan.real_frames) == (1, 0, 9)
        chunk = PendingChunk(session, plan)
        parcel = session.prepare(plan)
        (delivery,) = engine.transport.post([parcel]).result()
        session.receive(chunk, delivery)
        newest = Picture.of(picture(5, seed=1).pixels()[-HEIGHT * WIDTH * 3 :], height=HEIGHT, width=WIDTH)
        assert torch.equal(chunk.latents[:, :1], encoded(engine, newest))
        assert len(session.finish(chunk).frames) == 9


def refused(session: Session, control: AnyControl, words: str, at_chunk: int | None = None) -> None:
    with pytest.raises(ControlError, match=words) as error:
        session.control(control, at_chunk=at_chunk)
    assert "\n" not in str(error.value)


def test_what_can_never_apply_is_refused_in_one_line(engine: Engine) -> None:
    large = Picture.of(bytes(32 * 32 * 3), height=32, width=32)
    broken = Picture(height=HEIGHT, width=WIDTH, rgb=b"nothing")
    with engine.session("sea", **SMALL) as session:
        refused(session, SetImage(picture=large), "32x32 pixels and the stream 16x32")
        refused(session, SetImage(picture=broken), "not packed by zlib")
        refused(session, SetImage(image=b"a file"), "takes a fitted picture")
        refused(session, SetImage(picture=picture(25)), "at most 21 frames, got 25")
        for chunk in range(MAX_PICTURES):
            session.control(SetImage(picture=picture(), id=f"{chunk}"), at_chunk=chunk)
        refused(session, SetImage(picture=picture()), "a picture waits for chunk 0 already")
        refused(session, SetImage(picture=picture()), "4 pictures are waiting already", at_chunk=9)
        session.control(SetImage(picture=picture(seed=1), id="0"), at_chunk=0)
    with engine.session("sea", **(SMALL | dict(window=3))) as session:
        refused(session, SetImage(picture=picture()), "a window of 3 has no room .* choose 4 or more")
    with engine.session("sea", **SMALL, frames=moving_square(9, 2)) as session:
        refused(session, SetImage(picture=picture()), "a session that restyles a video takes no picture")


def test_pictures_that_wait_are_bounded_in_bytes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    one = len(picture().rgb)
    monkeypatch.setattr("millstream.session.timeline.MAX_PICTURE_BYTES", one + 10)
    with engine.session("sea", **SMALL) as session:
        session.control(SetImage(picture=picture()), at_chunk=1)
        refused(session, SetImage(picture=picture()), f"pictures of {one} bytes are waiting", at_chunk=2)


# Random tracks


def tracks(controls: st.SearchStrategy[AnyControl]) -> st.SearchStrategy[list[tuple[int, AnyControl]]]:
    return st.lists(st.tuples(st.integers(0, CHUNKS - 1), controls), max_size=8)


CHUNKS = 7
KEYS = st.lists(st.sampled_from(["a", "d", "w", "space"]), max_size=3, unique=True).map(tuple)
ANGLES = st.tuples(st.integers(-90, 90).map(float), st.integers(-90, 90).map(float))
MOTIONS = st.sampled_from([STILL, AHEAD])
IMAGES: st.SearchStrategy[AnyControl] = st.builds(
    lambda frames, seed, mode: SetImage(picture=picture(frames, seed), mode=mode, chunks=2),
    st.sampled_from([1, 5]),
    st.integers(0, 2),
    st.sampled_from(["cut", "blend"]),
)
TRACKS = tracks(
    st.one_of(
        IMAGES,
        IMAGES,
        st.builds(lambda keys, tapped, look: SetActions(keys=keys, tapped=tapped, look=look), KEYS, KEYS, ANGLES),
        st.builds(lambda motion, path: SetCamera(motion=motion, path=tuple(path)), MOTIONS, st.lists(MOTIONS, max_size=5)),
        st.sampled_from(
            [
                Cut(),
                SetSeed(seed=3),
                SetPrompt(prompt="storm"),
                SetPrompt(prompt="storm", mode="cut"),
                SetPrompt(prompt="night", mode="blend", chunks=3),
                SetWindow(window=6, sink=1),
            ]
        ),
    )
)  # fmt: skip


def steer(session: Session, track: list[tuple[int, AnyControl]]) -> None:
    """Hand in what can apply: of two pictures for one chunk, the first."""
    for at_chunk, control in track:
        with suppress(ControlError):
            session.control(control, at_chunk=at_chunk)


def recorded(
    engine: Engine,
    path: Path,
    track: list[tuple[int, AnyControl]],
    chunks: int = CHUNKS,
    keep: Callable[[Session], None] = lambda session: session.close(),
) -> list[Chunk]:
    config = engine.stream_config(**SMALL)
    with JournalWriter(path, engine.journal_header(config, "session")) as journal:
        session = engine.session("sea", config=config, journal=journal, session_id=f"session {id(path)}")
        steer(session, track)
        made = list(session.stream(chunks))
        keep(session)
        return made


@settings(max_examples=10)
@given(track=TRACKS, at_chunk=st.integers(0, CHUNKS - 1))
@example([(0, SetActions(keys=("w",))), (4, SetPrompt(prompt="storm"))], 3)  # rebuilt from what was saved
@example([(4, SetImage(picture=picture(5)))], 5)  # made again, from a state before it
@example([(2, SetImage(picture=picture(), mode="blend", chunks=4))], 4)  # saved on the way
def test_whatever_is_asked_a_replay_a_branch_and_a_saved_session_give_the_same(
    track: list[tuple[int, AnyControl]], at_chunk: int
) -> None:
    engine = engine_that_takes(True)
    with tempfile.TemporaryDirectory() as folder:
        sessions = list[Session]()
        chunks = recorded(engine, Path(folder) / "a.jsonl", track, keep=sessions.append)
        journal = read_journal(Path(folder) / "a.jsonl")
        assert [line.digest for line in journal.chunks] == digests(chunks)
        for line in journal.chunks:
            line.envelope.validate()
            assert len(line.envelope.conditions) == 3
            assert len(line.envelope.context_conditions) == len(line.envelope.context_indices)
        assert all(again.identical for again in replay(engine, journal))
        (session,) = sessions
        with session, session.fork(at_chunk) as branch:
            steer_again(branch, track, at_chunk)
            assert digests(list(branch.stream(CHUNKS - at_chunk))) == digests(chunks[at_chunk:])
        fingerprint = engine.fingerprint()
        original = engine.session("sea", **SMALL)
        with original:
            steer(original, track)
            list(original.stream(at_chunk))
            saved = Path(folder) / "saved"
            snapshot.write(snapshot.capture(engine, original, fingerprint), saved)
        log = Path(folder) / "b.jsonl"
        with JournalWriter(log, journal.header) as writer:
            back = snapshot.revive(snapshot.read(saved, engine, fingerprint), engine, "back", journal=writer)
            with back:
                assert digests(list(back.stream(CHUNKS - at_chunk))) == digests(chunks[at_chunk:])
        expected = [line.envelope.what_it_says for line in journal.chunks[at_chunk:]]
        assert [line.envelope.what_it_says for line in read_journal(log).chunks] == expected


def steer_again(branch: Session, track: list[tuple[int, AnyControl]], at_chunk: int) -> None:
    """A branch keeps what was asked for later chunks, and is free in its next one: ask for that again."""
    taken = set[int]()
    for chunk, control in track:
        if isinstance(control, SetImage):
            if chunk in taken or len(taken) >= MAX_PICTURES:
                continue
            taken.add(chunk)
        if chunk == at_chunk:
            branch.control(control)
