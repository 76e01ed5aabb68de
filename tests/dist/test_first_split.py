"""The first split of a real pipeline: a stage that is slow from the start has fewer layers before the first
chunk."""

from __future__ import annotations

import time
from functools import partial

from torch import Tensor

from millstream.core.topology import Topology
from millstream.engine.engine import Engine
from millstream.generation.generator import Generator
from millstream.generation.stopwatch import Stopwatch
from millstream.mesh.config import MeshConfig
from millstream.mesh.launch import launcher
from millstream.mesh.rank import run_rank
from millstream.mesh.rendezvous import MeetingPoint
from millstream.models.dit import Block
from millstream.parallel.layers import StagedDiT
from tests.dist.meshes import LIMITS, MODEL, SMALL
from tests.dist.streams import newest
from tests.unit.models_for_tests import relative_error

SIX_LAYERS = "wan-mini"
SLOW = 2


def run_with_a_slow_rank(config: MeshConfig, rank: int, meeting: MeetingPoint) -> None:
    if rank == SLOW:
        forward = Block.forward

        def sleepy(self: Block, *args: object) -> Tensor:
            time.sleep(0.15)
            return forward(self, *args)

        Block.forward = sleepy
    run_rank(config, rank, meeting, make_generator=checked)


def checked(share: StagedDiT, stopwatch: Stopwatch) -> Generator:
    """A rank leaves unless the slow stage has less than half of the layers."""
    assert share.bounds[1] > 3, f"split {share.bounds}"
    assert (
        share.cached_layers
        == len(share.dit.blocks)
        == (share.bounds[1] if share.is_first else 6 - share.bounds[1])
    )
    return Generator(share, stopwatch)


def test_a_stage_that_is_slow_from_the_start_has_fewer_layers_and_the_stream_does_not_notice() -> None:
    launch = partial(launcher, run=run_with_a_slow_rank)
    local = Engine(SIX_LAYERS, **MODEL)
    place = dict(topology=Topology.parse("front+pp2"), limits=LIMITS, launch=launch)
    with Engine(SIX_LAYERS, stream=local.stream_config(**SMALL), **MODEL, **place) as spread:
        session, alone = (engine.session("sea", seed=5, **SMALL) for engine in (spread, local))
        for _ in zip(session.stream(2), alone.stream(2), strict=True):
            assert relative_error(newest(session), newest(alone)) < 1e-5
