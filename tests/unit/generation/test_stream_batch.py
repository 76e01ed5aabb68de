"""One session's chunks at staggered noise levels: in order, never seeing the future, exact where only one is
under way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from millstream.core.controls import Cut, SetPrompt, SetSteps
from millstream.core.errors import ConfigError
from millstream.engine.engine import Engine
from millstream.generation.stream_batch import StreamBatch
from millstream.models.staggered import StaggeredMemory
from millstream.ops.attention import attend
from tests.unit.models_for_tests import DIT, relative_error, ring, tiny_engine
from tests.unit.one_chunk import accept, plan_chunk

pytestmark = pytest.mark.slow

SMALL = dict(height=16, width=32, window=9, steps=(1000, 750, 500, 250))


def batched(
    engine: Engine, depth: int, chunks: int, controls: dict[int, object] | None = None, **changes: object
) -> list[Tensor]:
    """Latents of a stream whose chunks are planned ahead as far as the batch is deep; shown where a control
    needs them."""
    session = engine.session("sea", seed=4, **SMALL | changes)
    batch = StreamBatch(engine.generator, depth=depth)
    found = []
    shown = 0
    for index in range(chunks):
        if controls and index in controls:
            session.control(controls[index])
            found += batch.flush()
            for delivery in found[shown:]:
                accept(session, delivery)
            shown = len(found)
        found += batch.push(plan_chunk(session))
    found += batch.flush()
    assert [delivery.result.chunk_index for delivery in found] == list(range(chunks))
    assert all(delivery.result.ok for delivery in found)
    return [delivery.latents_out for delivery in found]


def exact(engine: Engine, chunks: int) -> list[Tensor]:
    session = engine.session("sea", seed=4, **SMALL)
    found = []
    for _ in range(chunks):
        delivery = engine.generator.run(plan_chunk(session))
        accept(session, delivery)
        found.append(delivery.latents_out)
    return found


def test_a_depth_of_one_is_the_exact_stream_to_the_bit() -> None:
    pairs = zip(batched(tiny_engine(), 1, 5), exact(tiny_engine(), 5), strict=True)
    assert all(torch.equal(found, expected) for found, expected in pairs)


def test_a_chunk_that_begins_early_is_only_nearly_what_it_would_be() -> None:
    found = batched(tiny_engine(), 2, 6)
    expected = exact(tiny_engine(), 6)
    assert torch.equal(found[0], expected[0]), (
        "the first has nothing before it, and never sees what comes after"
    )
    errors = [relative_error(*pair) for pair in zip(found[1:], expected[1:], strict=True)]
    assert all(error > 1e-4 for error in errors), errors


def test_a_chunk_never_sees_a_later_one() -> None:
    """In a full ring the next chunk takes slots that this one could see."""
    memory = ring(DIT, (2, 3), window=6)
    tokens = torch.randn(4, 1, 18, DIT.heads, DIT.head_width)
    for chunk in range(3):
        memory.place(list(range(3 * chunk, 3 * chunk + 3)))
        memory.write(0, tokens[chunk], tokens[chunk])
    early = StaggeredMemory(memory)
    memory.place([9, 10, 11])
    memory.write(0, 100 * tokens[3], 100 * tokens[3])
    found = early.attend(0, tokens[2], tokens[2], tokens[2])
    assert relative_error(found, attend(tokens[2], tokens[2], tokens[2])) < 1e-6, (
        "chunk 1 has left, chunk 3 is hidden"
    )


def test_a_cut_and_a_switch_end_what_is_under_way_first() -> None:
    controls = {2: SetPrompt(prompt="hills", mode="keep"), 4: Cut()}
    found = batched(tiny_engine(), 2, 6, controls)
    assert all(torch.isfinite(latents).all() for latents in found)
    alone = batched(tiny_engine(), 1, 6, controls)
    assert torch.equal(found[4], alone[4]), "after a cut there is nothing noisy to see"


@pytest.mark.parametrize("depth", [2, 3])
def test_a_chunk_of_fewer_steps_does_not_end_before_an_older_one(depth: int) -> None:
    """As when an input moves less and its noise is turned down."""
    controls = {
        2: SetSteps(steps=(1000,)),
        4: SetSteps(steps=(1000, 750, 500, 250)),
        5: SetSteps(steps=(1000, 500)),
    }
    found = batched(tiny_engine(), depth, 7, controls)
    assert all(torch.isfinite(latents).all() for latents in found)


@pytest.mark.parametrize("depth", [2, 3])
def test_a_window_that_takes_long_to_rebuild_is_there_before_the_next_chunk_begins(depth: int) -> None:
    controls = {8: SetPrompt(prompt="hills", mode="recompute")}
    found = batched(tiny_engine(), depth, 11, controls, window=36, steps=(1000, 500))
    alone = batched(tiny_engine(), 1, 11, controls, window=36, steps=(1000, 500))
    assert len(found) == 11
    if depth == 2:  # two steps: a chunk begins when the one before has only its commit left
        assert all(relative_error(*pair) < 1e-5 for pair in zip(found, alone, strict=True))


def test_a_commit_that_is_owed_is_made_before_a_stream_batch_begins() -> None:
    engine = Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32")
    expected = exact(engine, 3)
    engine.generator.commits = "paired"
    session = engine.session("sea", seed=4, **SMALL)
    batch = StreamBatch(engine.generator, depth=1)
    accept(session, engine.generator.run(plan_chunk(session)))
    found = [delivery.latents_out for _ in range(2) for delivery in batch.push(plan_chunk(session))]
    assert all(relative_error(*pair) < 1e-5 for pair in zip(found, expected[1:], strict=True))


def test_more_than_the_window_holds_is_refused() -> None:
    session = tiny_engine().session("sea", **SMALL)
    with pytest.raises(
        ConfigError, match="4 chunks of 3 frames under way need a window of 12 beside the sink, got 9"
    ):
        StreamBatch(tiny_engine().generator, depth=4).push(plan_chunk(session))
