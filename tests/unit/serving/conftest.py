"""An engine of the smallest model, and a fake mesh in the place of its transport."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.engine.engine import Engine
from tests.unit.fake_mesh import FakeMesh


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine("wan-tiny", weights="random", device="cpu", dtype="float32")


@pytest.fixture
def mesh(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> FakeMesh:
    mesh = FakeMesh(engine)
    monkeypatch.setattr(engine, "_parts", replace(engine.parts, transport=mesh))
    return mesh
