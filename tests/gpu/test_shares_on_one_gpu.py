"""A rank's share of a large model on a GPU: what it takes while it is read, and what one of its blocks takes
to run."""

from __future__ import annotations

import gc

import pytest
import torch

from millstream.core.presets import MODELS
from millstream.core.topology import Topology
from millstream.models.dit import CausalDiT
from millstream.models.registry import load_dit
from millstream.parallel.apply import even_bounds
from millstream.parallel.measure import measure_call
from millstream.parallel.shares import share_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SPEC = MODELS["wan2.1-t2v-1.3b"]
GPU = torch.device("cuda")


@pytest.mark.parametrize(
    ("name", "least", "most"), [("front+1", 1.0, 1.0), ("front+tp4", 0.4, 0.6), ("front+pp4", 0.2, 0.35)]
)
def test_reading_a_share_takes_that_share_and_one_parameter(name: str, least: float, most: float) -> None:
    """Random weights: a parameter is drawn in float32 and kept in bfloat16, so one takes at most three times
    its bytes."""
    topology = Topology.parse(name)
    with torch.device("meta"):
        sizes = [2 * parameter.numel() for parameter in CausalDiT(SPEC.dit).parameters()]
    share = share_of(topology, 1, even_bounds(SPEC.dit.layers, topology.pp))
    gc.collect()  # or what earlier tests left is let go while this one counts
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    dit = load_dit(SPEC, ["random:1"], device=GPU, dtype=torch.bfloat16, keep=share)
    held = sum(parameter.nbytes for parameter in dit.parameters() if not parameter.is_meta)
    peak = torch.cuda.max_memory_allocated() - before
    left = torch.cuda.memory_allocated() - before
    print(
        f"{name}: {held / 1e9:.2f} GB of {sum(sizes) / 1e9:.2f}, at most {peak / 1e9:.2f} while it was read"
    )
    assert least <= held / sum(sizes) <= most
    assert held <= left <= 1.03 * held, "but for what the allocator rounds up"
    assert left <= peak <= left + 3 * max(sizes)


def test_a_block_is_measured_apart_from_what_is_around_it() -> None:
    costs = measure_call(SPEC, device=GPU, dtype=torch.bfloat16)
    print({name: f"{1e3 * getattr(costs, name):.2f} ms" for name in costs.__slots__})
    assert 0 < costs.embed_s < costs.block_s
    assert 0 < costs.head_s < costs.block_s
