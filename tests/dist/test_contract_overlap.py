"""The contract between front and mesh, where they work at the same time: real processes, stages that sleep to
a set length.

Ids as in the contract's table. Stages are of similar length here, so that what overlap gains is far more than
what a busy machine adds; the figures at the contract's own times are in `benchmarks/results/overlap.json`.
"""

from __future__ import annotations

import statistics

import pytest

from millstream.commands.bench.overlap import Measured, OverlapRequest, OverlapSetting, measure, settings
from millstream.core.overlap import LEFT_OUT
from millstream.engine.depths import Depths

GATE = 0.30
"""A score below this is no overlap."""
QUICK = OverlapRequest(stage0_ms=600, stage1_ms=800, scale=0.02, chunks=LEFT_OUT + 6)
CLEAR = OverlapRequest(stage0_ms=600, stage1_ms=800, scale=0.1, chunks=LEFT_OUT + 8)
SERIALISED = OverlapSetting(depths=Depths(d_in=1, d_out=1, send_first=False))
ANCHORED = tuple(OverlapSetting(anchor="decoded", depths=Depths(send_first=first)) for first in (False, True))


def test_o_01_every_depth_of_the_queues_reports_its_overlap_memory_and_latency() -> None:
    chosen = [setting for setting in settings() if setting.anchor == "off" and setting.depths.send_first]
    found = {(each.setting.depths.d_in, each.setting.depths.d_out): each for each in measure(QUICK, chosen)}
    assert set(found) == {(d_in, d_out) for d_in in range(1, 5) for d_out in range(1, 5)}
    latents_bytes = 3 * 4 * 4 * 6 * 4
    for (d_in, d_out), each in found.items():
        held = each.queued_bytes / latents_bytes
        assert d_in <= held <= d_in + d_out + 3, (
            "what is sent is held; beside the queues one is shown, another was"
        )
        assert each.overlap.waiting_in <= d_in
        assert each.overlap.waiting_out <= d_out
        assert each.overlap.latency_ms >= QUICK.mesh_ms
    assert statistics.median(each.overlap.score for each in found.values()) >= GATE
    assert found[4, 1].queued_bytes > found[1, 1].queued_bytes, "a deeper queue holds more"
    assert found[4, 4].overlap.latency_ms > found[1, 1].overlap.latency_ms, (
        "a deeper queue makes controls wait"
    )


@pytest.fixture(scope="module")
def runs() -> dict[OverlapSetting, Measured]:
    chosen = [OverlapSetting(), SERIALISED, *ANCHORED]
    return dict(zip(chosen, measure(CLEAR, chosen), strict=True))


def test_o_02_the_signature_tells_a_healthy_run_from_a_serialised_one(
    runs: dict[OverlapSetting, Measured],
) -> None:
    healthy = runs[OverlapSetting()].overlap
    serialised = runs[SERIALISED].overlap
    assert (healthy.signature, serialised.signature) == ("mesh-bound", "serialised")
    assert healthy.score >= GATE > serialised.score
    assert serialised.idle_ms >= CLEAR.front_ms, "the mesh idles while the front decodes"
    assert healthy.period_ms < serialised.period_ms


def test_o_03_a_decoded_anchor_costs_the_overlap_unless_it_is_decoded_first(
    runs: dict[OverlapSetting, Measured],
) -> None:
    free = runs[OverlapSetting()].overlap
    whole, first = (runs[setting].overlap for setting in ANCHORED)
    assert whole.score < GATE, "the whole chunk is decoded before the next one leaves"
    assert whole.period_ms >= CLEAR.front_ms + CLEAR.mesh_ms
    assert first.score > whole.score
    assert CLEAR.mesh_ms <= free.period_ms < first.period_ms < whole.period_ms
