"""Attention in 8 bits, compiled and on the card: kernels against twins, models against plain ones. Skipped
elsewhere."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from millstream.commands.bench.quality import psnr
from millstream.core.speed import ALL, FP8_GROUPS, Speed
from millstream.engine.engine import Engine
from millstream.engine.replay import replay
from millstream.models.fast.apply import quicken
from millstream.models.joint import JointMemory, join_prompts
from millstream.ops.backend import only_twins
from millstream.ops.low_attention import attend_packed
from millstream.ops.quantise_kv import pack_runs
from millstream.ops.quantised_kv import TILE, PackedQueries, QuantisedKV
from millstream.ops.ring_write import write_ring
from millstream.ops.rope import frame_phases
from millstream.session.journal import JournalWriter, read_journal
from tests.gpu.test_fast_paths import BF16, DIT, GPU, GRID, chunks, random, ring
from tests.unit.models_for_tests import dit, relative_error

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
        reason="needs a Hopper GPU or a newer one",
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the libraries that compile kernels
]

LOW = Speed(blocks=True, round_keys=True, low_attention=True)
SHAPES = pytest.mark.parametrize(
    ("heads", "head", "queries", "keys"),
    [(12, 128, 700, 1500), (40, 128, 300, 640), (4, 64, 130, 700), (2, 32, 5, 100)],
)


def packed_of(k_RWNH: Tensor, v_RWNH: Tensor) -> QuantisedKV:
    packed = QuantisedKV.room(len(k_RWNH), k_RWNH.shape[1], *k_RWNH.shape[2:], device=GPU)
    packed.k_mean_RNH.copy_(k_RWNH.mean(1, dtype=torch.float32))
    packed.v_mean_RNH.copy_(v_RWNH.mean(1, dtype=torch.float32))
    pack_runs(packed, k_RWNH, v_RWNH, torch.zeros(1, dtype=torch.int64, device=GPU), k_RWNH.shape[1])
    return packed


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*(x.float().transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


@SHAPES
def test_packing_equals_its_twin(heads: int, head: int, queries: int, keys: int) -> None:
    k = random(2, keys, heads, head)
    v = random(2, keys, heads, head)
    found = packed_of(k, v)
    with only_twins():
        expected = packed_of(k, v)
    for ours, twins in zip(found.tensors, expected.tensors, strict=True):
        assert relative_error(ours.float(), twins.float()) <= 5e-3


def test_a_run_packs_the_tiles_it_touches_and_no_other() -> None:
    k = random(2, 1000, 12, 128)
    v = random(2, 1000, 12, 128)
    packed = packed_of(k, v)
    before = [tensor.clone() for tensor in packed.tensors]
    k.neg_()
    v.neg_()
    pack_runs(packed, k, v, torch.tensor([600, 0], device=GPU), 60)  # tiles 4 and 5, tile 0
    changed = (packed.k_RWNH != before[0]).any(3).any(2).any(0).unflatten(0, (-1, TILE)).any(1)
    assert changed.tolist() == [True, False, False, False, True, True, False, False]
    values = (
        (packed.vt_RNHW.float() != before[1].float()).any(2).any(1).any(0).unflatten(0, (-1, TILE)).any(1)
    )
    assert torch.equal(values, changed)


@SHAPES
def test_attention_equals_its_twin(heads: int, head: int, queries: int, keys: int) -> None:
    q = random(2, queries, heads, head)
    k = random(2, keys, heads, head)
    v = random(2, keys, heads, head)
    asked = PackedQueries.of(q)
    packed = packed_of(k, v)
    for length in (keys, keys // 2, min(keys, TILE)):
        found = attend_packed(asked, packed, length, dtype=BF16)
        with only_twins():
            expected = attend_packed(asked, packed, length, dtype=torch.float32)
        assert relative_error(found.float(), expected) <= 0.015


def test_it_stays_near_float32_and_does_not_shrink() -> None:
    """Sums of e4m3 products have few places on this card: what is summed must not lose its size over many
    keys."""
    q = random(1, 256, 12, 128)
    k = random(1, 14_040, 12, 128)
    v = random(1, 14_040, 12, 128) + 3
    found = attend_packed(PackedQueries.of(q), packed_of(k, v), 14_040, dtype=torch.float32)
    wanted = exact(q, k, v)
    middle = v.float().mean(1, keepdim=True)
    assert relative_error(found - middle, wanted - middle) <= 0.08
    assert float((found * wanted).sum() / (wanted * wanted).sum()) == pytest.approx(1.0, abs=2e-3)
    gain = float(((found - middle) * (wanted - middle)).sum() / (wanted - middle).square().sum())
    assert gain == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("heads", [12, 40])
def test_queries_are_packed_as_they_are_written(heads: int) -> None:
    qkv = random(2, 180, 3 * 128 * heads)
    weight_q = random(128 * heads)
    weight_k = random(128 * heads)
    phases = frame_phases(torch.tensor([900, 901, 902], device=GPU), GRID, 128)
    index = torch.randperm(400, device=GPU)[:180]

    def written() -> tuple[PackedQueries, Tensor]:
        k, v = (torch.zeros(2, 400, heads, 128, device=GPU, dtype=BF16) for _ in range(2))
        q = write_ring(qkv, weight_q, weight_k, phases, index, k, v, eps=1e-6, packs=True)
        assert isinstance(q, PackedQueries)
        return q, torch.cat([k, v]).float()

    found, ring_found = written()
    with only_twins():
        expected, ring_expected = written()
    assert relative_error(found.scales, expected.scales) <= 1e-5
    assert relative_error(found.numbers.float(), expected.numbers.float()) <= 2e-3
    assert relative_error(ring_found, ring_expected) <= 4e-3


@pytest.mark.parametrize(("fp8", "tolerance"), [((), 0.03), (FP8_GROUPS, 0.08)], ids=["bf16", "fp8"])
@pytest.mark.parametrize("kind", [{}, dict(sink=2, positions="windowed")], ids=["ring", "sink"])
def test_a_model_stays_near_the_plain_one(
    fp8: tuple[str, ...], tolerance: float, kind: dict[str, object]
) -> None:
    model = dit(DIT).to(GPU, BF16)
    expected = chunks(deepcopy(model), ring(**kind))
    assert relative_error(chunks(quicken(model, replace(LOW, fp8=fp8)), ring(**kind)), expected) <= tolerance


@pytest.mark.parametrize("fp8", [(), FP8_GROUPS], ids=["bf16", "fp8"])
def test_recorded_calls_give_the_same_bits_and_so_does_a_second_run(fp8: tuple[str, ...]) -> None:
    model = dit(DIT).to(GPU, BF16)
    speed = replace(LOW, fp8=fp8)
    plainly = quicken(deepcopy(model), speed)
    expected = chunks(plainly, ring(), 24)
    assert torch.equal(chunks(plainly, ring(), 24), expected)
    recorded = quicken(model, replace(speed, graphs=True))
    assert torch.equal(chunks(recorded, ring(), 24), expected)
    assert len(recorded.blocks._recordings) == 2


@torch.inference_mode()
def test_sessions_that_share_calls_stay_apart() -> None:
    model = quicken(dit(DIT).to(GPU, BF16), LOW)
    rings = [ring(), ring()]
    prompts = [model.read_prompt(random(1, 128, 64)) for _ in range(2)]
    for each in rings:
        each.place([0, 1, 2])
    rings[1].place([3, 4, 5])
    latents = random(2, 3, 16, 12, 20)
    level = torch.full((2, 3), 700.0, device=GPU)
    alone = [model(latents[i : i + 1], level[:1], rings[i], prompts[i]) for i in range(2)]
    together = model(latents, level, JointMemory(rings), join_prompts(prompts))
    assert relative_error(together.float(), torch.cat(alone).float()) <= 0.02


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@torch.inference_mode()
def test_calls_never_wait_for_the_device() -> None:
    model = quicken(dit(DIT).to(GPU, BF16), LOW)
    memory = ring()
    cross = model.read_prompt(random(1, 128, 64))
    latents = random(1, 3, 16, 12, 20)
    level = torch.zeros(1, 3, device=GPU)
    memory.place([0, 1, 2])
    model(latents, level, memory, cross)
    assert memory.packed is not None
    torch.cuda.set_sync_debug_mode("error")
    try:
        memory.packed.renew(memory.k[:, :, :180], memory.v[:, :, :180], 180)
        model(latents, level, memory, cross)
        model.commit(latents, level, memory, cross)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_session_replays_to_the_same_bits_and_its_pictures_are_near_the_plain_ones(tmp_path: Path) -> None:
    def engine(speed: Speed) -> Engine:
        return Engine("wan-mini", weights="random:3", device="cuda", dtype="bfloat16", speed=speed)

    low = engine(replace(ALL, low_attention=True))
    path = tmp_path / "run.jsonl"
    config = low.stream_config(seed=4)
    with JournalWriter(path, low.journal_header(config, "session")) as lines:
        made = list(low.session("sea", config=config, journal=lines, session_id="session").stream(9))
    journal = read_journal(path)
    assert journal.header.speed.low_attention
    assert [each.identical for each in replay(low, journal)] == [True] * 9, "in an engine with recordings"
    assert [each.identical for each in replay(engine(journal.header.speed), journal)] == [True] * 9, (
        "in a fresh one"
    )
    plain = engine(Speed()).session("sea", config=config).stream(3)
    assert min(psnr(a.frames, b.frames) for a, b in zip(made, plain, strict=False)) >= 30
