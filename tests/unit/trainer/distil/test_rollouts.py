"""What a student paints for self-forcing is what a session of the same weights, seed and prompt streams."""

from __future__ import annotations

import torch

from millstream.trainer.distil.lots import RowLots
from millstream.trainer.distil.streams import Painter
from tests.unit.models_for_tests import tiny_engine

CPU = torch.device("cpu")
CHUNKS, WINDOW = 5, 6
"""More chunks than the window holds: the ring overwrites its oldest."""


def test_a_rollout_is_the_stream_that_the_engine_serves() -> None:
    engine = tiny_engine()
    lots = RowLots(7, "student", 3, [0, 2], CPU)
    assert RowLots(7, "student", 3, [2], CPU).seeds_B[0] == lots.seeds_B[1], "whoever has the row"
    served, texts = list[torch.Tensor](), list[torch.Tensor]()
    for seed, prompt in zip(lots.seeds_B.tolist(), ("sea", "a boat at dawn"), strict=True):
        with engine.session(prompt, height=32, width=48, window=WINDOW, seed=seed) as session:
            parcels = [session.plan_chunk() for _ in range(CHUNKS)]
            texts.append(parcels[0].conditioning)
            served.append(torch.cat([engine.generator.run(parcel).latents_out for parcel in parcels], dim=1))
            levels, shape = parcels[0].envelope.steps, parcels[0].latents_in.shape
    painter = Painter(engine.generator.dit, torch.float32)
    found, starts = painter.stream(
        torch.cat(texts).float(), (2, *shape[1:]), lots, chunks=CHUNKS, levels=levels, window=WINDOW, learns=1
    )
    torch.testing.assert_close(found, torch.cat(served), rtol=1e-4, atol=1e-5)
    assert len(starts) == CHUNKS
