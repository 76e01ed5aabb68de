"""A stream is steered: conditions reach the frames that they are of, on every way that a chunk is made."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch

from millstream.core.conditions import BeginFrom, CameraMotion, FrameActions, FrameConditions
from millstream.core.controls import SetActions, SetCamera, SetPrompt
from millstream.core.speed import Speed
from millstream.engine.engine import Engine
from millstream.generation.generator import Commits, Generator
from millstream.generation.stopwatch import Stopwatch
from millstream.generation.stream_batch import StreamBatch
from millstream.models.entries import NO_ENTRIES
from millstream.wire.parcel import Parcel, digest
from tests.unit.generation.steering import SMALL, TURNING, WORLD, newest, steer, steered, world_engine
from tests.unit.models_for_tests import relative_error, tiny_engine
from tests.unit.one_chunk import accept, plan_chunk
from tests.unit.rounds import make_together

W = FrameConditions(actions=FrameActions(keys=("w",)))
IDLE = FrameConditions(actions=FrameActions(), camera=CameraMotion())
MOVED = FrameConditions(camera=CameraMotion(motion=TURNING))


def maker(commits: Commits = "at once") -> Generator:
    generator = Generator(world_engine().model.dit, Stopwatch(torch.device("cpu")), commits=commits)
    generator.injectors = world_engine().model.injectors
    return generator


def parcels(count: int) -> list[Parcel]:
    """Parcels of an unsteered session, one after the other."""
    engine = tiny_engine()
    session = engine.session("sea", seed=4, **SMALL)
    made = []
    for _ in range(count):
        parcel = plan_chunk(session)
        assert parcel is not None
        made.append(parcel)
        accept(session, engine.generator.run(parcel))
    return made


def saying(parcel: Parcel, **changes: object) -> Parcel:
    return replace(parcel, envelope=msgspec.structs.replace(parcel.envelope, **changes))


def run(generator: Generator, *wanted: Parcel) -> list[torch.Tensor]:
    found = [generator.run(parcel) for parcel in wanted]
    assert all(delivery.result.ok for delivery in found), [each.result.error for each in found]
    return [delivery.latents_out for delivery in found]


def test_a_held_key_and_a_moved_camera_change_a_chunk_and_idle_hands_change_no_bit() -> None:
    (parcel,) = parcels(1)
    (plain,) = run(maker(), parcel)
    for conditions in ((), (IDLE, IDLE, IDLE)):
        (idle,) = run(maker(), saying(parcel, conditions=conditions))
        assert digest(idle) == digest(plain), "as a model without injectors makes it"
    acted = {
        name: run(maker(), saying(parcel, conditions=conditions))[0]
        for name, conditions in {
            "w": (W, W, W),
            "w, at first": (W, IDLE, IDLE),
            "w, at last": (IDLE, IDLE, W),
            "camera": (MOVED, MOVED, MOVED),
        }.items()
    }
    assert len({digest(latents) for latents in (plain, *acted.values())}) == 5


def test_a_model_that_is_not_steered_refuses_conditions_in_one_line() -> None:
    (parcel,) = parcels(1)
    generator = tiny_engine().generator
    for conditions, reason in (
        ((W, W, W), "has actions, and its model takes none"),
        ((MOVED, MOVED, MOVED), "moves a camera, and its model takes none"),
    ):
        delivery = generator.run(saying(parcel, conditions=conditions))
        assert not delivery.result.ok
        assert reason in delivery.result.error


def test_a_commit_has_the_conditions_of_its_own_chunk_whenever_it_is_made() -> None:
    first, second = parcels(2)
    steered_first = saying(first, conditions=(W, W, MOVED))
    found = {}
    for commits in ("at once", "later", "paired"):
        _, found[commits] = run(maker(commits), steered_first, saying(second, conditions=(IDLE, IDLE, IDLE)))
    assert torch.equal(found["later"], found["at once"])
    assert relative_error(found["paired"], found["at once"]) < 1e-5
    carried = maker("paired")
    run(carried, steered_first)
    owed = carried.caches[first.envelope.session_id].owed
    carried.caches[first.envelope.session_id].owed = replace(owed, entries=NO_ENTRIES)
    (forgotten,) = run(carried, second)
    assert relative_error(forgotten, found["at once"]) > 1e-4, "or this test sees nothing"


def test_a_window_that_is_built_anew_has_what_its_frames_were_made_with() -> None:
    """As `recompute` builds it from the same chunks, a group at a time, with nothing else to see."""
    first, second = parcels(2)
    (clean,) = run(live := maker(), saying(first, conditions=(W, W, MOVED)))
    (streamed,) = run(live, saying(second, conditions=(MOVED, W, W)))
    session_id = first.envelope.session_id

    def rebuilt(context: tuple[FrameConditions, ...]) -> torch.Tensor:
        again = maker()
        run(again, first)
        anew = saying(
            second,
            conditions=(MOVED, W, W),
            reset_kv=True,
            reset_cross=True,
            recompute=True,
            context_indices=(0, 1, 2),
            context_conditions=context,
            expected_calls=second.envelope.expected_calls + 1,
            session_id=session_id,
        )
        return run(again, replace(anew, context_frames=clean, conditioning=first.conditioning))[0]

    assert relative_error(rebuilt((W, W, MOVED)), streamed) < 1e-5
    assert relative_error(rebuilt(()), streamed) > 1e-4


def test_chunks_at_staggered_levels_have_each_their_own_conditions() -> None:
    """A later chunk's key does not reach the one before it, which is still under way."""
    planned = parcels(3)
    ahead = [saying(parcel, under_way=2) for parcel in planned]

    def batched(*conditions: tuple[FrameConditions, ...]) -> list[str]:
        batch = StreamBatch(maker(), depth=2)
        found = []
        for parcel, held in zip(ahead, conditions, strict=True):
            found += batch.push(saying(parcel, conditions=held))
        found += batch.flush()
        assert all(delivery.result.ok for delivery in found), [each.result.error for each in found]
        return [digest(delivery.latents_out) for delivery in found]

    idle = batched((), (), ())
    held = batched((), (W, W, W), ())
    assert held[0] == idle[0]
    assert held[1] != idle[1]


def test_frames_that_are_given_come_out_as_they_were_and_the_others_begin_from_them() -> None:
    (parcel,) = parcels(1)
    given = torch.randn(1, 1, 4, 2, 4, generator=torch.Generator().manual_seed(1))

    def begun(frame: torch.Tensor) -> torch.Tensor:
        latents = torch.cat([frame, parcel.latents_in[:, 1:]], dim=1)
        begin_from = BeginFrom(digest="a picture")
        named = saying(parcel, given_frames=1, begin_from=begin_from)
        return run(maker(), replace(named, latents_in=latents))[0]

    found = begun(given)
    assert torch.equal(found[:, :1], given)
    assert not torch.equal(found[:, 1:], begun(given + 1)[:, 1:])


@pytest.mark.slow
def test_sessions_in_one_batch_are_steered_each_by_its_own_hands() -> None:
    engine = world_engine()
    pairs = [[engine.session("sea", seed=seed, **SMALL) for _ in range(2)] for seed in range(3)]
    together, alone = zip(*pairs, strict=True)
    for side in (together, alone):
        steer(side[0])
        steer(side[1], shift=1)  # the third is not steered
    for _ in range(5):
        make_together(engine, together)
        for shared, session in zip(together, alone, strict=True):
            next(session.stream(1))
            assert relative_error(newest(shared), newest(session)) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("speed", [Speed(blocks=True), Speed(blocks=True, paired_commits=True)])
def test_a_steered_stream_is_the_same_on_the_fast_path(speed: Speed) -> None:
    engine = Engine("wan-tiny-world", **WORLD, speed=speed)
    assert relative_error(steered(engine), steered(world_engine())) < 1e-3


@pytest.mark.slow
def test_a_branch_and_a_session_that_was_in_host_memory_go_on_with_what_is_held() -> None:
    engine = world_engine()
    with engine.session("sea", seed=5, **SMALL) as session, engine.session("sea", seed=5, **SMALL) as twin:
        for each in (session, twin):
            steer(each)
            assert len(list(each.stream(3))) == 3
        branch = session.fork()
        engine.offload(session)
        engine.bring_back(session)
        expected = [chunk.digest for chunk in twin.stream(3)]
        assert [chunk.digest for chunk in session.stream(3)] == expected
        assert [chunk.digest for chunk in branch.stream(3)] == expected
        pressed = session.fork()
        pressed.control(SetActions(keys=("d",)))
        assert next(iter(pressed.stream(1))).digest != next(iter(session.stream(1))).digest


@pytest.mark.slow
def test_a_session_s_window_is_rebuilt_with_what_its_frames_were_made_with() -> None:
    """The same prompt once more: the window that is rebuilt from all frames is the one that was there."""
    engine = world_engine()
    found = []
    for again in (False, True):
        with engine.session("sea", seed=5, height=16, width=32, window=15) as session:
            session.control(SetActions(keys=("w",), axes=(0.5,)), at_chunk=1)
            session.control(SetCamera(motion=TURNING), at_chunk=2)
            if again:
                session.control(SetPrompt(prompt="sea", mode="recompute"), at_chunk=3)
            *_, last = session.stream(4)
            assert (last.timing.phases_ms.get("recompute", 0.0) > 0) == again
            found.append(newest(session))
    assert relative_error(*found) < 1e-5
