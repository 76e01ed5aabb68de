"""What a student paints for self-forcing is what a session of the same weights, seed and prompt streams."""

from __future__ import annotations

import pytest
import torch

from millstream.core.conditions import Picture
from millstream.core.controls import SetImage
from millstream.models.fast.follow import plain_weights
from millstream.models.registry import load_dit
from millstream.train.distil.row_randomness import RowRandomness
from millstream.train.distil.self_forcing import Painter
from tests.unit.models_for_tests import dit, tiny_engine
from tests.unit.one_chunk import plan_chunk
from tests.unit.train.finetune.datasets import SPEC

CPU = torch.device("cpu")
CHUNKS = 5
WINDOW = 6
"""More chunks than the window holds: the ring overwrites its oldest."""


@pytest.mark.parametrize("is_fast", [False, True])
def test_a_rollout_is_the_stream_that_the_engine_serves(is_fast: bool) -> None:
    engine = tiny_engine()
    lots = RowRandomness(7, "student", 3, [0, 2], CPU)
    assert RowRandomness(7, "student", 3, [2], CPU).seeds_B[0] == lots.seeds_B[1], "whoever has the row"
    served = list[torch.Tensor]()
    texts = list[torch.Tensor]()
    for seed, prompt in zip(lots.seeds_B.tolist(), ("sea", "a boat at dawn"), strict=True):
        with engine.session(prompt, height=16, width=32, window=WINDOW, seed=seed) as session:
            parcels = [plan_chunk(session) for _ in range(CHUNKS)]
            texts.append(parcels[0].conditioning)
            served.append(torch.cat([engine.generator.run(parcel).latents_out for parcel in parcels], dim=1))
            levels = parcels[0].envelope.steps
            shape = parcels[0].latents_in.shape
    painter = Painter(
        load_dit(SPEC, ["random:3"], device=CPU, dtype=torch.float32), torch.float32, is_fast=is_fast
    )
    found, starts = painter.stream(
        torch.cat(texts).float(), (2, *shape[1:]), lots, chunks=CHUNKS, levels=levels, window=WINDOW, learns=1
    )
    torch.testing.assert_close(found, torch.cat(served), rtol=1e-4, atol=1e-5)
    assert len(starts) == CHUNKS


def test_a_rollout_from_a_picture_is_the_stream_that_the_engine_serves() -> None:
    engine = tiny_engine()
    lots = RowRandomness(7, "student", 3, [0], CPU)
    pixels = torch.randint(0, 256, (16, 32, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    picture = Picture.of(pixels.numpy().tobytes(), height=16, width=32)
    served = list[torch.Tensor]()
    with engine.session("sea", height=16, width=32, window=WINDOW, seed=int(lots.seeds_B[0])) as session:
        session.control(SetImage(picture=picture))
        parcels = [plan_chunk(session) for _ in range(CHUNKS)]
        for parcel in parcels:
            served.append(engine.generator.run(parcel).latents_out)
    first = parcels[0]
    assert (first.envelope.start_frame, len(first.envelope.context_indices)) == (1, 1)
    painter = Painter(load_dit(SPEC, ["random:3"], device=CPU, dtype=torch.float32), torch.float32)
    found, starts = painter.stream(
        first.conditioning.float(),
        (1, *first.latents_in.shape[1:]),
        lots,
        chunks=CHUNKS,
        levels=first.envelope.steps,
        window=WINDOW,
        before=first.context_frames,
        given=1,
    )
    torch.testing.assert_close(found[:, 1:], torch.cat(served, dim=1), rtol=1e-4, atol=1e-5)
    assert len(starts) == CHUNKS


class Student:
    """One that has learnt since."""

    changes = 1

    def each_weight(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, 1.5 * parameter + 0.01) for name, parameter in dit().named_parameters()]


def test_a_painter_on_the_fast_path_follows_every_weight_of_the_student() -> None:
    plain = Painter(dit(), torch.float32)
    fast = Painter(dit(), torch.float32, is_fast=True)
    assert plain_weights(fast.dit).keys() == plain_weights(plain.dit).keys()
    text = torch.randn(2, 7, 24)
    shape = (2, 3, 4, 4, 6)

    def streamed(painter: Painter) -> torch.Tensor:
        lots = RowRandomness(0, "a", 0, [0, 1], CPU)
        return painter.stream(text, shape, lots, chunks=2, levels=(1000.0, 700.0), window=6)[0]

    before = streamed(plain)
    found = list[torch.Tensor]()
    for painter in (plain, fast):
        painter.load_weights(Student())  # type: ignore[arg-type]
        found.append(
            painter.stream(
                text, shape, RowRandomness(0, "a", 0, [0, 1], CPU), chunks=2, levels=(1000.0, 700.0), window=6
            )[0]
        )
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)
    assert (found[0] - before).abs().max() > 0.01, "the student has changed"
