"""Wan 2.2's 5B is planned for with its own stride and VAE, which our fast decoder does not know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.core.chunk_work import tokens_per_frame
from millstream.core.errors import ConfigError
from millstream.core.presets import MODELS
from millstream.core.topology import Topology
from millstream.planner.footprint import device_needs
from millstream.planner.hardware import find_device
from millstream.planner.memory import dit_parameters
from millstream.planner.peaks import tiled_decode_peak
from millstream.planner.software import SOFTWARE
from millstream.planner.time import decode_ms
from millstream.planner.workload import Workload

SPEC = MODELS["wan2.2-ti2v-5b"]


def test_the_5b_has_its_published_size_and_tokens() -> None:
    assert tokens_per_frame(SPEC.dit, SPEC.stream) == 880
    assert dit_parameters(SPEC.dit) == pytest.approx(5.0e9, rel=0.01)


def test_its_decoder_is_planned_as_the_plain_one_beside_fast_blocks() -> None:
    device = find_device("H200")
    plain, fast = (
        Workload(spec=SPEC, stream=SPEC.stream, software=SOFTWARE[name]) for name in ("eager", "fast")
    )
    assert decode_ms(fast, device) == decode_ms(plain, device)
    (need,) = device_needs(fast, device, Topology())
    assert "canvases" not in need.fixed
    assert "recordings" in need.fixed


def test_a_tiny_decoder_of_it_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"no tiny decoder of wan2\.2-ti2v-5b's latents is known"):
        Workload(spec=SPEC, stream=SPEC.stream, decoder="tiny")


def test_its_tiles_come_in_the_multiples_that_its_sizes_have() -> None:
    size = dict(frames=3, value_bytes=2)
    with pytest.raises(ConfigError, match="multiple of 32 pixels, got 48"):
        tiled_decode_peak(SPEC.vae, SPEC.stream, **size, tile=48)  # type: ignore[arg-type]
    assert tiled_decode_peak(SPEC.vae, SPEC.stream, **size, tile=256) > 0  # type: ignore[arg-type]
    other = replace(SPEC.stream, height=480, width=832)
    assert tokens_per_frame(SPEC.dit, other) == 15 * 26
