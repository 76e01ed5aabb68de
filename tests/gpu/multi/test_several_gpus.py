"""One stream over several GPUs, each rank with its own, over NCCL. Skipped, with a reason, where there are
not two."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.core.topology import Topology
from millstream.engine.engine import Engine
from tests.dist.streams import newest
from tests.unit.models_for_tests import relative_error

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs, {GPUS} here: nothing of this was tried")

SMALL: dict[str, Any] = dict(height=32, width=48, window=6)
CHUNKS = 12
"""Enough for every call to be recorded."""


def stream(topology: str, **fields: Any) -> torch.Tensor:
    """The last latent frame of every chunk."""
    engine = Engine(
        "wan-tiny", weights="random:3", device="cuda", topology=Topology.parse(topology), **fields
    )
    with engine, engine.session("sea", seed=5, **SMALL) as session:
        return torch.cat([newest(session).float().cpu() for _ in session.stream(CHUNKS)])


@pytest.mark.parametrize("topology", ["tp2", "sp2", "pp2"])
def test_a_stream_over_two_gpus_is_that_of_one(topology: str) -> None:
    assert relative_error(stream(topology, dtype="float32"), stream("local", dtype="float32")) < 1e-3


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("fast", ["on", "on,peer_memory"])
def test_fast_ranks_over_nccl_show_what_one_fast_gpu_shows_and_the_report_has_their_times(
    precision: str, fast: str, tmp_path: Path
) -> None:
    out = tmp_path / "mesh.json"
    words = (
        "bench mesh --model wan2.1-t2v-1.3b --weights random --size 256x448 --window 9 --chunks 10 --tiles"
    )
    result = CliRunner().invoke(
        app, [*words.split(), "--fast", fast, "--precision", precision, "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    print(result.output)
    local, *meshes = json.loads(out.read_text())["measured"]["runs"]
    tried = {(each["topology"], each["tiles"]) for each in meshes}
    assert tried >= set(product(("tp2", "sp2", "pp2"), (1, 2)))
    for each in meshes:
        assert each["through"] == "nccl"
        assert each["collectives_ms"] > 0
        assert each["off_by"] < 8, f"{each['topology']}: as near as two roundings of the same model"
    assert local["off_by"] == 0
