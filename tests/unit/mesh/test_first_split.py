"""The first split of a pipeline: even, unless what was measured says that another one is notably quicker."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from millstream.core.errors import MeshError
from millstream.core.presets import MODELS
from millstream.core.topology import Topology
from millstream.engine.engine import Engine
from millstream.mesh.config import MeshConfig
from millstream.mesh.first_split import pictures_s, split_by
from millstream.mesh.launch import LaunchedMesh
from millstream.models.dit import Block
from millstream.parallel.measure import CallCosts, measure_call
from tests.unit.models_for_tests import tiny_engine

PP2 = Topology.parse("front+pp2")
EVEN = CallCosts(block_s=1.0, embed_s=0.1, head_s=0.1)


def slow(times: float) -> CallCosts:
    return CallCosts(block_s=times, embed_s=0.1 * times, head_s=0.1 * times)


def test_stages_that_are_alike_get_as_many_layers_each() -> None:
    assert split_by(40, PP2, {1: EVEN, 2: EVEN}, 0.0) == (0, 20, 40)
    assert split_by(40, PP2, {1: slow(1.05), 2: EVEN}, 0.0) == (0, 20, 40), (
        "no more than what measuring may be off by"
    )


def test_a_stage_that_is_three_times_as_slow_gets_a_third_of_the_layers() -> None:
    assert split_by(40, PP2, {1: EVEN, 2: slow(3.0)}, 0.0) == (0, 30, 40)
    assert split_by(40, PP2, {1: slow(3.0), 2: EVEN}, 0.0) == (0, 10, 40)


def test_a_front_that_shares_the_leaders_device_leaves_it_fewer_layers() -> None:
    assert split_by(40, PP2, {1: EVEN, 2: EVEN}, front_s=8.0) == (0, 16, 40)


def test_a_large_head_is_made_up_for() -> None:
    head = CallCosts(block_s=1.0, embed_s=0.1, head_s=6.0)
    assert split_by(20, PP2, {1: head, 2: head}, 0.0) == (0, 13, 20)


def test_the_slowest_rank_of_a_stage_is_the_stage() -> None:
    topology = Topology.parse("front+pp2xtp2")
    assert split_by(40, topology, {1: EVEN, 2: EVEN, 3: EVEN, 4: slow(3.0)}, 0.0) == (0, 30, 40)


def test_a_front_measures_its_pictures_only_where_a_stage_shares_its_device() -> None:
    engine = tiny_engine()
    taken_s = pictures_s(engine.model.vae, engine.spec, device=engine.device, dtype=engine.dtype)
    assert 0 < taken_s < 60
    asked = []

    def launch(config: MeshConfig) -> Callable[[], LaunchedMesh]:
        asked.append(config)
        raise MeshError("enough is known")

    for name in ("front+pp2", "pp2"):
        with pytest.raises(MeshError, match="enough"):
            Engine(
                "wan-tiny",
                weights="random:3",
                device="cpu",
                dtype="float32",
                topology=Topology.parse(name),
                launch=launch,
            )
    assert [config.front_s > 0 for config in asked] == [False, True]


def test_a_block_that_takes_longer_is_measured_to(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = MODELS["wan-tiny"]
    forward = Block.forward
    place = dict(device=torch.device("cpu"), dtype=torch.float32)
    plain = measure_call(spec, **place)

    def sleepy(self: Block, *args: object) -> torch.Tensor:
        time.sleep(0.05)
        return forward(self, *args)

    monkeypatch.setattr(Block, "forward", sleepy)
    slowed = measure_call(spec, **place)
    assert slowed.block_s >= plain.block_s + 0.03
    assert min(plain.embed_s, plain.head_s) > 0
    assert slowed.embed_s < 0.03, "what is around the blocks is measured apart"
