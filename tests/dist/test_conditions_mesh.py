"""A steered stream on a mesh: every rank reads the injectors and enters what one device would."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.core.conditions import Picture
from millstream.core.controls import SetImage
from millstream.engine.engine import Engine
from tests.dist.meshes import mesh_engine
from tests.unit.generation.steering import steered, world_engine
from tests.unit.models_for_tests import relative_error

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("topology", ["front+tp2", "front+pp2", "front+sp2"])
def test_a_steered_stream_stays_with_that_of_one_device(topology: str) -> None:
    with mesh_engine(topology, model="wan-tiny-world") as engine:
        assert engine.fingerprint() == world_engine().fingerprint()
        assert relative_error(steered(engine), steered(world_engine())) < 1e-3


def begun_within(engine: Engine) -> list[np.ndarray]:
    """Frames of a stream whose picture is the first frame of its first chunk, 16 pixels a latent cell."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    with engine.session("sea", seed=4, height=64, width=64, window=6) as session:
        session.control(SetImage(picture=Picture.of(pixels.tobytes(), height=64, width=64)))
        return [chunk.frames.astype(int) for chunk in session.stream(3)]


@pytest.mark.parametrize("topology", ["front+tp2", "front+pp2"])
def test_a_stream_of_16_pixels_a_cell_begins_from_a_picture_as_on_one_device(topology: str) -> None:
    alone = begun_within(Engine("wan22-tiny", weights="random:3", device="cpu", dtype="float32"))
    with mesh_engine(topology, model="wan22-tiny") as engine:
        found = begun_within(engine)
    assert all(abs(one - other).max() <= 1 for one, other in zip(found, alone, strict=True))
