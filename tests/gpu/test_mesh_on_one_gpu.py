"""Ranks that share one GPU: gloo through pinned host memory, the same flows as the whole model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from millstream.core.topology import FRONT, Topology
from millstream.parallel.groups import create_groups
from millstream.parallel.layers import StagedDiT
from tests.dist.calls import FOUR_HEADS, STREAMS, flows, whole_flows
from tests.dist.ranks import run_ranks
from tests.dist.spread import parallelise
from tests.unit.models_for_tests import dit, relative_error

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on_the_gpu(rank: int, name: str) -> list[Tensor] | None:
    topology = Topology.parse(name)
    groups = create_groups(topology, rank, timeout_s=60)
    if rank == FRONT:
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    share = parallelise(dit(FOUR_HEADS).to("cuda"), topology, groups)
    found = [flows(share, **stream).cpu() for stream in STREAMS]
    if isinstance(share, StagedDiT):
        share.drain()
    return found


@pytest.mark.parametrize("name", ["front+tp2", "front+sp2", "front+pp2"])
def test_ranks_on_one_gpu_give_the_flows_of_the_whole_model(name: str) -> None:
    expected = whole_flows()
    _, *ranks = run_ranks(on_the_gpu, 3, name, timeout_s=180)
    for found in ranks:
        assert [relative_error(*pair) < 1e-4 for pair in zip(found, expected, strict=True)] == [True, True]
