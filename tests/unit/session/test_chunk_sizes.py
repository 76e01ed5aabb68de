"""Streams of chunks of 1, 3, 4 and 8 latent frames, with steps of their own for an epoch's first chunk: what
is made again is made to the same bits."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millstream.core.config import pixel_frames
from millstream.core.controls import AnyControl, Cut, SetImage, SetPrompt, SetSteps
from millstream.core.errors import ConfigError
from millstream.core.rewind import RewindConfig
from millstream.core.speed import Speed
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.engine.replay import replay
from millstream.engine.staggered import refuse_stream_batch
from millstream.session.chunk import Chunk
from millstream.session.journal import JournalWriter, read_journal
from tests.unit.session.test_begin import picture
from tests.unit.session.test_session import moving_square

pytestmark = pytest.mark.slow

SIZES = [1, 3, 4, 8]
FIRST = (1000, 750, 500, 250)
CONTROLS = [
    (2, SetPrompt(prompt="storm", mode="recompute")),
    (4, Cut()),
    (5, SetPrompt(prompt="night", mode="recompute")),
    (6, SetSteps(steps=(900, 400), first_steps=(1000,))),
    (7, SetPrompt(prompt="sea", mode="cut")),
]


def fields(frames: int, **changes: Any) -> dict[str, Any]:
    """A window that no whole number of chunks fills, with a sink."""
    small = dict(height=16, width=32, frames_per_chunk=frames, window=2 * frames + 3, sink=1)
    return small | dict(steps=(1000,), first_steps=FIRST) | changes


@pytest.fixture(scope="module")
def engine() -> Engine:
    limits = RewindConfig(states=3, every=3, latents=64)
    return Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32", rewind=limits)


def recorded(
    engine: Engine, path: Path, controls: Iterable[tuple[int, AnyControl]], chunks: int, **changes: Any
) -> list[Chunk]:
    config = engine.stream_config(**changes)
    with JournalWriter(path, engine.journal_header(config, "session")) as journal:
        session = engine.session("sea", config=config, journal=journal, session_id="session")
        for chunk, control in controls:
            session.control(control, at_chunk=chunk)
        return list(session.stream(chunks))


@pytest.mark.parametrize("sampler", ["renoise", "unipc"])
@pytest.mark.parametrize("frames", SIZES)
def test_a_replay_a_branch_and_a_saved_session_give_the_same(
    engine: Engine, tmp_path: Path, frames: int, sampler: str
) -> None:
    path = tmp_path / "run.jsonl"
    asked = fields(frames, sampler=sampler)
    chunks = recorded(engine, path, CONTROLS, 9, **asked)
    journal = read_journal(path)
    assert [len(line.envelope.steps) for line in journal.chunks] == [4, 1, 1, 1, 4, 1, 2, 1, 2]
    assert {line.envelope.sampler for line in journal.chunks} == {sampler}
    starts = [line.envelope.start_frame for line in journal.chunks]
    assert [chunk.num_frames for chunk in chunks] == [pixel_frames(start, frames) for start in starts]
    assert all(chunk.identical for chunk in replay(engine, journal))
    session = engine.session("sea", **asked)
    for chunk, control in CONTROLS:
        session.control(control, at_chunk=chunk)
    digests = [chunk.digest for chunk in session.stream(5)]
    assert digests == [chunk.digest for chunk in chunks[:5]]
    with session.fork(3) as branch:
        assert [chunk.digest for chunk in branch.stream(6)] == [chunk.digest for chunk in chunks[3:]]
    fingerprint = engine.model.fingerprint()
    snapshot.write(snapshot.capture(engine, session, fingerprint), tmp_path / "saved.safetensors")
    again = snapshot.read(tmp_path / "saved.safetensors", engine, fingerprint)
    with snapshot.revive(again, engine, "another") as revived:
        assert [chunk.digest for chunk in revived.stream(4)] == [chunk.digest for chunk in chunks[5:]]
    session.close()


@pytest.mark.parametrize("frames", SIZES)
def test_a_picture_is_followed_by_a_first_chunk(engine: Engine, tmp_path: Path, frames: int) -> None:
    """Its latents come before, and what is made after them is what an epoch begins with."""
    path = tmp_path / "run.jsonl"
    shown = picture(5)
    controls = [(0, SetImage(picture=picture())), (3, SetImage(picture=shown, mode="cut"))]
    chunks = recorded(engine, path, controls, 5, **fields(frames))
    envelopes = [line.envelope for line in read_journal(path).chunks]
    assert [len(envelope.steps) for envelope in envelopes] == [4, 1, 1, 4, 1]
    assert [envelope.start_frame for envelope in envelopes] == [
        1, 1 + frames, 1 + 2 * frames, 2, 2 + frames,
    ]  # fmt: skip
    assert [chunk.num_frames for chunk in chunks] == [
        1 + 4 * frames, 4 * frames, 4 * frames, 5 + 4 * frames, 4 * frames,
    ]  # fmt: skip
    assert all(chunk.identical for chunk in replay(engine, read_journal(path)))


@pytest.mark.parametrize("positions", ["absolute", "windowed"])
@pytest.mark.parametrize("frames", SIZES)
def test_a_rebuilt_window_shows_what_the_kept_one_does_to_rounding(
    engine: Engine, frames: int, positions: str
) -> None:
    """With a window that holds all frames: those that a rebuilt one sees have seen the same before them."""
    asked = fields(frames, window=4 * frames, sink=0, positions=positions, seed=5)
    with engine.session("sea", **asked) as kept, engine.session("sea", **asked) as rebuilt:
        rebuilt.control(SetPrompt(prompt="sea", mode="recompute"), at_chunk=3)
        for one, other in zip(kept.stream(4), rebuilt.stream(4), strict=True):
            apart = np.abs(one.frames.astype(int) - other.frames.astype(int))
            assert apart.max() <= 1, f"chunk {one.index} is off by {apart.max()}"


@pytest.mark.parametrize("sampler", ["renoise", "unipc"])
@pytest.mark.parametrize("frames", [1, 8])
def test_a_video_is_restyled_from_its_own_noise_in_every_chunk(
    engine: Engine, frames: int, sampler: str
) -> None:
    video = moving_square(pixel_frames(0, 3 * frames), 2)
    asked = fields(frames, sampler=sampler, noise_scale=0.6, motion_gain=0.0)
    with engine.session("sea", frames=video, **asked) as session:
        steps = [plan.envelope.steps for plan in iter_plans(session, 3)]
    lower = [level for level in engine.stream_config(**asked).noise_levels(FIRST) if level < 600]
    assert steps == [(600.0, *lower), (600.0,), (600.0,)]


def iter_plans(session: Any, chunks: int) -> Iterable[Any]:
    """Plans of chunks that are made one after the other."""
    decide = session.decide
    plans = []

    def noted() -> Any:
        plans.append(decide())
        return plans[-1]

    session.decide = noted
    list(session.stream(chunks))
    return [plan for plan in plans if plan is not None][:chunks]


def test_a_stream_batch_refuses_a_multistep_solver_in_one_line(engine: Engine) -> None:
    config = engine.stream_config(sampler="unipc", window=9)
    refuse_stream_batch(1, config, Speed())
    with pytest.raises(ConfigError, match="--sampler renoise"):
        refuse_stream_batch(2, config, Speed())
