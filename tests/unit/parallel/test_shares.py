"""A rank's share of a DiT: together the shares are the whole, and reading one takes the memory of one and a
parameter."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from millstream.core.config import DiTConfig
from millstream.core.presets import MODELS
from millstream.core.speed import FP8_GROUPS, Speed
from millstream.core.topology import LEADER, Topology
from millstream.models.dit import CausalDiT
from millstream.models.live_bytes import LiveBytes
from millstream.models.registry import load_dit
from millstream.models.weights.fill import Keep, fill_random
from millstream.models.weights.fingerprint import FingerprintRecorder, records
from millstream.parallel.apply import connect, even_bounds
from millstream.parallel.collectives import RankGroup
from millstream.parallel.groups import Groups
from millstream.parallel.shares import keep_share, share_of
from tests.unit.checkpoints import Weights, assert_same, in_layout, random_module, save, weights_of
from tests.unit.exact_memory import EXACT_MEMORY
from tests.unit.models.test_lora import LAYERS, SPELLINGS, merged_by_hand

pytestmark = pytest.mark.slow

TOPOLOGIES = ("front+1", "front+tp2", "front+sp2", "front+pp2", "front+pp2xtp2")
PLACE = dict(device=torch.device("cpu"), dtype=torch.float32)


def shares_of(name: str, layers: int) -> dict[int, Keep]:
    topology = Topology.parse(name)
    return {rank: share_of(topology, rank, even_bounds(layers, topology.pp)) for rank in topology.mesh_ranks}


def held(dit: nn.Module) -> Weights:
    return {name: parameter for name, parameter in dit.named_parameters() if not parameter.is_meta}


def cut(whole: Weights, keep: Keep) -> Weights:
    found = {name: keep(name, tensor) for name, tensor in whole.items()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_element_is_with_some_rank_and_blocks_are_with_one_or_in_parts(name: str) -> None:
    topology = Topology.parse(name)
    counted = {}
    numbered = {each: torch.arange(tensor.numel()).view(tensor.shape) for each, tensor in whole_dit().items()}
    for keep in shares_of(name, 2).values():
        for each, kept in cut(numbered, keep).items():
            counts = counted.setdefault(each, torch.zeros(numbered[each].numel(), dtype=torch.int64))
            counts[kept.flatten()] += 1
    for each, counts in counted.items():
        copies = topology.mesh_size
        if each.startswith("blocks."):
            split = ".self_attn." in each and not each.endswith("self_attn.o.bias")
            split |= ".ffn." in each and not each.endswith("ffn.down.bias")
            copies = topology.sp * (1 if split else topology.tp)
        assert bool((counts == copies).all()), f"{each}: {counts.unique().tolist()} of {copies}"
    assert counted.keys() == numbered.keys()


def whole_dit() -> Weights:
    return weights_of(random_module("dit"))


SOURCES = ("random", "a file", "a file and two LoRAs", "bundled")


def source(kind: str, folder: Path) -> dict[str, object]:
    """What `load_dit` is told."""
    if kind == "bundled":
        return dict(spec=MODELS["brook"], weights=["bundled"])
    if kind == "random":
        return dict(spec=MODELS["wan-tiny"], weights=["random:3"])
    path = save(in_layout(whole_dit(), "dit", "original"), folder / "dit.safetensors")
    loras = [(str(save(SPELLINGS["ours"](), folder / f"{number}.safetensors")), 0.5) for number in range(2)]
    return dict(spec=MODELS["wan-tiny"], weights=[str(path)], loras=loras if kind.endswith("LoRAs") else [])


@pytest.mark.parametrize("kind", SOURCES)
def test_a_share_that_is_read_has_the_bits_of_the_whole_and_tells_its_fingerprint(
    kind: str, tmp_path: Path
) -> None:
    asked = source(kind, tmp_path)
    whole = load_dit(**asked, **PLACE)
    keeps = [keep for name in TOPOLOGIES for keep in shares_of(name, len(whole.blocks)).values()]
    for keep in keeps[-1:] if kind == "bundled" else keeps:
        recorder = FingerprintRecorder("dit")

        def noted(
            each: str, tensor: Tensor, keep: Keep = keep, recorder: FingerprintRecorder = recorder
        ) -> Tensor | None:
            recorder.add(each, tensor)
            return keep(each, tensor)

        share = load_dit(**asked, **PLACE, keep=noted)
        assert_same(held(share), cut(dict(whole.named_parameters()), keep))
        assert recorder.records() == records("dit", whole)


def test_loras_are_merged_as_they_are_into_a_whole_model(tmp_path: Path) -> None:
    found = load_dit(**source("a file and two LoRAs", tmp_path), **PLACE)
    once, twice = (merged_by_hand(scale) for scale in (0.5, 1.0))
    for layer in LAYERS:
        name = f"{layer}.weight"
        assert torch.allclose(held(found)[name], twice[name], atol=1e-6)
        assert not torch.allclose(held(found)[name], once[name], atol=1e-6)


MEASURE = """
import sys
from dataclasses import replace
import torch
from millstream.core.config import DiTConfig
from millstream.core.config import DiTConfig
from millstream.core.presets import MODELS
from millstream.core.topology import Topology
from millstream.models.registry import load_dit
from millstream.parallel.apply import even_bounds
from millstream.parallel.shares import share_of

def anonymous_bytes():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("RssAnon"))

path, name, rank = sys.argv[1], Topology.parse(sys.argv[2]), int(sys.argv[3])
spec = replace(MODELS["wan-mini"], dit=DiTConfig(**eval(sys.argv[4])))
share = share_of(name, rank, even_bounds(spec.dit.layers, name.pp))
place = dict(device=torch.device("cpu"), dtype=torch.float32)
load_dit(MODELS["wan-tiny"], ["random"], **place)  # what torch sets up on first use is not the model's
before, peak, held = anonymous_bytes(), 0, 0

def measured(each, whole):
    global peak, held
    kept = share(each, whole)
    held += 0 if kept is None else kept.nbytes
    peak = max(peak, anonymous_bytes() - before)
    return kept

dit = load_dit(spec, [path], **place, keep=measured)
print(max(peak, anonymous_bytes() - before), held)
"""
SIZES = dict(layers=4, width=512, heads=4, ffn=2048, text_width=64)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_reading_a_share_takes_the_memory_of_that_share_and_one_parameter(tmp_path: Path) -> None:
    with torch.device("meta"):
        dit = CausalDiT(DiTConfig(**SIZES))
    fill_random(dit, seed=0, device="cpu", dtype=torch.float32)
    whole = weights_of(dit)
    path = save(in_layout(whole, "dit", "original"), tmp_path / "dit.safetensors")
    total = sum(each.nbytes for each in whole.values())
    largest = max(each.nbytes for each in whole.values())
    for name, rank, most in (("front+1", 1, 1.0), ("front+pp2xtp2", 4, 0.5)):
        command = [sys.executable, "-c", MEASURE, str(path), name, str(rank), repr(SIZES)]
        run = subprocess.run(command, capture_output=True, text=True, check=True, env=EXACT_MEMORY)
        peak, share = map(int, run.stdout.split())
        assert 0.2 * total < share <= most * total
        assert share * 0.9 < peak < share + largest + 2e6, (
            f"{name}: {peak / 1e6:.1f} MB for a share of {share / 1e6:.1f} MB"
        )


def leaders_groups(topology: Topology) -> Groups:
    """Nobody is spoken to."""
    sizes = dict(mesh=topology.mesh_size, stage=topology.tp * topology.sp, lane=topology.pp)
    ranks = {name: tuple(range(LEADER, LEADER + size)) for name, size in sizes.items()}
    made = {
        name: RankGroup(name=name, purpose="mesh", ranks=ranks[name], rank=LEADER, handle=None)
        for name in sizes
    }
    mesh, stage, lane = made.values()
    return Groups(world=mesh, mesh=mesh, stages=(stage,), lanes=(lane,), backs=(lane,), record=mesh.record)


@pytest.mark.parametrize(
    ("name", "fp8"), [("front+tp2", FP8_GROUPS), ("front+sp2", ()), ("front+pp2", FP8_GROUPS)]
)
def test_a_share_becomes_fast_in_the_memory_of_that_share_and_a_block_and_a_half(
    name: str, fp8: tuple[str, ...]
) -> None:
    """A block's q, k and v are there twice while they become one; a parameter is there in float32 while it is
    rounded."""
    topology = Topology.parse(name)
    spec = replace(MODELS["wan-mini"], dit=DiTConfig(**SIZES | dict(width=256, ffn=1024)))
    bounds = even_bounds(spec.dit.layers, topology.pp)
    place = dict(device=torch.device("cpu"), dtype=torch.bfloat16, keep=share_of(topology, LEADER, bounds))
    with LiveBytes("cpu") as live:
        share = load_dit(spec, ["random:1"], **place)
        read, block = (sum(each.nbytes for each in held(part).values()) for part in (share, share.blocks[0]))
        fast = connect(
            share, topology, leaders_groups(topology), bounds=bounds, speed=Speed(blocks=True, fp8=fp8)
        )
    left = sum(each.nbytes for each in held(fast).values())
    assert read <= live.peak <= read + 1.5 * block, (
        f"{live.peak} for a share of {read} with blocks of {block}"
    )
    assert left < 0.75 * read if fp8 else left == read


def test_a_model_that_is_here_whole_is_cut_to_what_would_have_been_read() -> None:
    asked = source("random", Path())
    for keep in shares_of("front+pp2xtp2", 2).values():
        whole = load_dit(**asked, **PLACE)
        keep_share(whole, keep)
        expected = held(load_dit(**asked, **PLACE, keep=keep))
        found = {name: parameter for name, parameter in whole.named_parameters() if name in expected}
        assert_same(found, expected)
        assert whole.blocks[keep.layers[0]].ffn.up.out_features == whole.config.ffn // 2
