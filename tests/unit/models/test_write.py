"""A DiT that was written for other programs is what they expect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from millstream.models.registry import load_dit
from millstream.models.weights.parts import Layout
from millstream.models.weights.write import STEM, write_dit
from tests.unit.checkpoints import TINY, in_layout, random_module, weights_of

CONFIGURED = {"num_layers": TINY.dit.layers, "num_attention_heads": TINY.dit.heads, "ffn_dim": TINY.dit.ffn}


@pytest.mark.slow
def test_diffusers_loads_it_strictly(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers", reason="diffusers is what it is written for")
    weights = weights_of(random_module("dit"))
    write_dit(tmp_path, TINY, weights, "diffusers", source="test", dtype=torch.float32, shard_bytes=60_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    written = {
        name: weight for path in tmp_path.glob("*.safetensors") for name, weight in load_file(path).items()
    }
    model = diffusers.WanTransformer3DModel.from_config(json.loads((tmp_path / "config.json").read_text()))
    model.load_state_dict(written, strict=True)
    theirs = in_layout(weights, "dit", "diffusers")
    assert all(torch.equal(weight, theirs[name]) for name, weight in model.state_dict().items())
    assert not [
        name for name, value in model.config.items() if name in CONFIGURED and value != CONFIGURED[name]
    ]


@pytest.mark.parametrize("layout", ["diffusers", "original"])
@pytest.mark.parametrize("shard_bytes", [60_000, 1 << 30])
def test_files_are_called_as_their_readers_look_for_them(
    tmp_path: Path, layout: Layout, shard_bytes: int
) -> None:
    weights = weights_of(random_module("dit", dtype=torch.bfloat16))
    write_dit(tmp_path, TINY, weights, layout, source="test", shard_bytes=shard_bytes)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    if shard_bytes == 1 << 30:
        assert files == [f"{STEM}.safetensors"]
    else:
        index = json.loads((tmp_path / f"{STEM}.safetensors.index.json").read_text())
        assert sorted(set(index["weight_map"].values())) == files
        assert all(index["weight_map"][name] == file for file in files for name in load_file(tmp_path / file))
        assert index["metadata"]["total_size"] == sum(weight.nbytes for weight in weights.values())
    loaded = load_dit(TINY, [str(tmp_path)], device=torch.device("cpu"), dtype=torch.bfloat16)
    assert all(torch.equal(loaded.get_parameter(name), weight) for name, weight in weights.items())
