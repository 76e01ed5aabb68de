"""Checkpoints of every layout and wrapping fill a module exactly, and what is drawn at random keeps its
scale."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from millstream.core.config import DiTConfig
from millstream.models.dit import CausalDiT
from millstream.models.wan.layouts import Part
from millstream.models.weights.fill import fill_random
from tests.unit.checkpoints import (
    PARTS,
    assert_same,
    filled,
    in_layout,
    prefixed,
    random_module,
    save,
    save_shards,
    weights_of,
)
from tests.unit.exact_memory import EXACT_MEMORY

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("part", PARTS)
def test_weights_travel_through_every_layout_bit_for_bit(part: Part, tmp_path: Path) -> None:
    expected = weights_of(random_module(part))
    original = save(in_layout(expected, part, "original"), tmp_path / "original.safetensors")
    ours = weights_of(filled(part, original))
    assert_same(ours, expected)
    diffusers = save(in_layout(ours, part, "diffusers"), tmp_path / "diffusers.safetensors")
    again = weights_of(filled(part, diffusers))
    assert_same(again, expected)
    assert_same(weights_of(filled(part, save(again, tmp_path / "ours.safetensors"))), expected)


def wrap(kind: str, dit: dict[str, torch.Tensor]) -> object:
    other = {name: tensor + 1 for name, tensor in dit.items()}
    return {
        "bare": dit,
        "generator": {"generator": prefixed(dit, "model."), "critic": other, "step": 600},
        "generator_ema": {"generator": other, "generator_ema": prefixed(dit, "model.")},
        "empty generator_ema": {"generator": dit, "generator_ema": None},
        "fsdp": {"generator": prefixed(dit, "model._fsdp_wrapped_module.")},
        "state_dict": {"state_dict": prefixed(dit, "module."), "epoch": 3},
        "model": {"model": dit},
        "nested": {"generator": {"model": prefixed(dit, "diffusion_model.")}},
    }[kind]


KINDS = ["bare", "generator", "generator_ema", "empty generator_ema", "fsdp", "state_dict", "model", "nested"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_torch_file_loads_however_it_is_wrapped(kind: str, tmp_path: Path) -> None:
    expected = weights_of(random_module("dit"))
    path = tmp_path / "model.pt"
    torch.save(wrap(kind, in_layout(expected, "dit", "original")), path)
    assert_same(weights_of(filled("dit", path)), expected)


def test_the_plain_generator_is_read_when_the_average_is_not_wanted(tmp_path: Path) -> None:
    plain, average = (in_layout(weights_of(random_module("dit", seed)), "dit", "original") for seed in (1, 2))
    path = tmp_path / "both.pt"
    torch.save({"generator": plain, "generator_ema": average}, path)
    assert_same(weights_of(filled("dit", path, prefer_ema=False)), weights_of(random_module("dit", 1)))
    assert_same(weights_of(filled("dit", path)), weights_of(random_module("dit", 2)))


def test_an_archive_of_the_old_torch_format_loads(tmp_path: Path) -> None:
    expected = weights_of(random_module("dit"))
    path = tmp_path / "old.pt"
    torch.save(in_layout(expected, "dit", "original"), path, _use_new_zipfile_serialization=False)
    assert_same(weights_of(filled("dit", path)), expected)


@pytest.mark.parametrize("prefix", ["model.", "model.diffusion_model.", "diffusion_model.", ""])
def test_one_safetensors_file_loads_with_any_known_prefix(prefix: str, tmp_path: Path) -> None:
    expected = weights_of(random_module("dit"))
    krea = save(prefixed(in_layout(expected, "dit", "original"), prefix), tmp_path / "krea.safetensors")
    assert_same(weights_of(filled("dit", krea)), expected)


def test_names_wrapped_in_the_middle_load(tmp_path: Path) -> None:
    expected = weights_of(random_module("dit"))
    original = in_layout(expected, "dit", "original")
    wrapped = {
        name.replace(".self_attn.", "._fsdp_wrapped_module.self_attn."): value
        for name, value in original.items()
    }
    assert_same(weights_of(filled("dit", save(wrapped, tmp_path / "x.safetensors"))), expected)


def test_the_embedding_loads_under_either_name(tmp_path: Path) -> None:
    expected = weights_of(random_module("text"))
    both = {**expected, "encoder.embed_tokens.weight": expected["shared.weight"].clone()}
    alias_only = {name: tensor for name, tensor in both.items() if name != "shared.weight"}
    for i, weights in enumerate((both, alias_only)):
        assert_same(weights_of(filled("text", save(weights, tmp_path / f"{i}.safetensors"))), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_filled_module_is_frozen_and_of_the_dtype_asked_for(dtype: torch.dtype, tmp_path: Path) -> None:
    module = filled("dit", save(weights_of(random_module("dit")), tmp_path / "x.safetensors"), dtype=dtype)
    assert not module.training
    assert all(p.dtype == dtype and not p.is_meta and not p.requires_grad for p in module.parameters())


def test_a_filled_module_does_not_lean_on_the_file(tmp_path: Path) -> None:
    path = save(weights_of(random_module("dit")), tmp_path / "x.safetensors")
    module = filled("dit", path)
    path.write_bytes(bytes(path.stat().st_size))
    assert_same(weights_of(module), weights_of(random_module("dit")))


MEASURE = """
import sys
from pathlib import Path
import torch
from millstream.core.config import DiTConfig
from millstream.models.dit import CausalDiT
from millstream.models.weights.fill import fill, fill_random

def status(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))

def small():
    with torch.device("meta"):
        return CausalDiT(DiTConfig(layers=1, width=16, heads=2, ffn=16, text_width=8))

fill_random(small(), seed=0, device="cpu", dtype=torch.float32)  # what torch sets up on first use is not the model's
with torch.device("meta"):
    dit = CausalDiT(DiTConfig(layers=4, width=768, heads=6, ffn=4096, text_width=64))
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
fill(dit, "dit", [Path(sys.argv[1])], device="cpu", dtype=torch.float32)
model = sum(p.numel() * p.element_size() for p in dit.parameters())
print(status("VmHWM") - before - model, model)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_filling_holds_the_model_and_little_more_than_one_shard(tmp_path: Path) -> None:
    with torch.device("meta"):
        dit = CausalDiT(DiTConfig(layers=4, width=768, heads=6, ffn=4096, text_width=64))
    fill_random(dit, seed=0, device="cpu", dtype=torch.float32)
    shards = save_shards(
        in_layout(weights_of(dit), "dit", "diffusers"), tmp_path, "diffusion_pytorch_model", 4
    )
    largest = max(shard.stat().st_size for shard in shards)
    assert len(shards) == 4
    assert largest > 40e6
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=EXACT_MEMORY)
    beyond, model = map(int, run.stdout.split())
    assert model > 3 * largest
    assert beyond < 1.2 * largest, (
        f"held {beyond / 1e6:.0f} MB beyond the model, largest shard {largest / 1e6:.0f} MB"
    )


def test_random_weights_depend_on_seed_and_name_only() -> None:
    first = random_module("dit", 1)
    again = random_module("dit", 1)
    other = random_module("dit", 2)
    assert_same(weights_of(first), weights_of(again))
    assert not torch.equal(first.blocks[0].ffn.up.weight, other.blocks[0].ffn.up.weight)
    assert not torch.equal(first.blocks[0].self_attn.q.weight, first.blocks[0].self_attn.k.weight)
    alone = nn.ModuleDict({"time_out": nn.Linear(48, 288)})
    fill_random(alone, seed=1, device="cpu", dtype=torch.float32)
    assert torch.equal(alone["time_out"].weight, first.time_out.weight)


@pytest.mark.parametrize("part", PARTS)
def test_random_weights_keep_the_scale_of_what_passes_through(part: Part) -> None:
    for name, tensor in weights_of(random_module(part)).items():
        if name.endswith("bias"):
            assert not tensor.any(), name
        elif "norm" in name:
            assert torch.equal(tensor, torch.ones_like(tensor)), name
        elif tensor.numel() > 500:
            fan_in = tensor.shape[-1] if "modulation" in name else tensor[0].numel()
            assert tensor.std().item() == pytest.approx(1 / math.sqrt(fan_in), rel=0.2), name
