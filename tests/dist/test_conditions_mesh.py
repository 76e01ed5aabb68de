"""A steered stream on a mesh: every rank reads the injectors and enters what one device would."""

from __future__ import annotations

import pytest

from tests.dist.meshes import mesh_engine
from tests.unit.generation.steering import steered, world_engine
from tests.unit.models_for_tests import relative_error

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("topology", ["front+tp2", "front+pp2", "front+sp2"])
def test_a_steered_stream_stays_with_that_of_one_device(topology: str) -> None:
    with mesh_engine(topology, model="wan-tiny-world") as engine:
        assert engine.fingerprint() == world_engine().fingerprint()
        assert relative_error(steered(engine), steered(world_engine())) < 1e-3
