"""A VAE on another device than the engine's, the one on the card and the other in host memory. Skipped
elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from millstream.engine.engine import Engine
from tests.unit.models_for_tests import SMALL, pictures, tiny_engine

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

ROUNDED = 3
"""Levels of 255 by which pictures may differ: a card convolves float32 in shorter numbers."""


def engine(device: str, *vae_devices: str) -> Engine:
    return Engine("wan-tiny", weights="random:3", device=device, dtype="float32", vae_devices=vae_devices)


@pytest.mark.parametrize("devices", [("cuda:0",), ("cuda:0", "cpu"), ("cpu", "cuda:0", "cuda:0")], ids=str)
@pytest.mark.parametrize("anchor", ["off", "decoded"])
def test_pictures_made_elsewhere_are_those_made_at_home(devices: tuple[str, ...], anchor: str) -> None:
    found = pictures(engine("cpu", *devices), anchor=anchor)
    expected = pictures(tiny_engine(), anchor=anchor)
    assert abs(found - expected).max() <= ROUNDED


def test_an_engine_on_the_card_may_have_its_pictures_made_by_the_host() -> None:
    assert abs(pictures(engine("cuda", "cpu")) - pictures(engine("cuda"))).max() <= ROUNDED


@pytest.mark.parametrize("devices", [("cuda:0",), ("cuda:0", "cpu")], ids=str)
def test_a_session_that_stood_still_in_host_memory_goes_on(devices: tuple[str, ...]) -> None:
    here = engine("cuda", *devices)
    undisturbed = here.session("sea", **SMALL)
    moved = here.session("sea", **SMALL)
    for chunk in undisturbed.stream(3):
        (again,) = moved.stream(1)
        assert np.array_equal(again.frames, chunk.frames)
        here.offload(moved)
        here.bring_back(moved)
