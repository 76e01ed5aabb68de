"""A model that attends in 8 bits: near the plain one, and the same bits however its window came to be
packed."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from millstream.commands.memory import session_bytes
from millstream.core.errors import ConfigError, DeviceError
from millstream.core.presets import MODELS
from millstream.core.speed import ALL, Speed, parse_speed
from millstream.core.topology import Topology
from millstream.engine import snapshot
from millstream.engine.engine import Engine
from millstream.models.dit import CausalDiT
from millstream.models.fast import apply
from millstream.models.fast.apply import quicken
from millstream.models.fast.recorded import RecordedStack
from millstream.models.joint import JointMemory, join_prompts
from millstream.models.kv import KVRing
from millstream.models.paired import DeferredCommit
from millstream.models.ring_shape import RingShape
from millstream.models.sampler import Call
from millstream.ops.quantise_kv import pack_runs
from millstream.ops.quantised_kv import QuantisedKV
from millstream.planner.footprint import device_needs
from millstream.planner.hardware import find_device
from millstream.planner.memory import packed_bytes
from millstream.planner.software import software_of
from millstream.planner.workload import Workload
from tests.unit.models.test_fast_dit import WIDE, ActiveRecording, chunks, ring, stream
from tests.unit.models_for_tests import dit, relative_error

pytestmark = pytest.mark.slow

LOW = Speed(blocks=True, low_attention=True)
KINDS = {"ring": {}, "sink": dict(sink=2, positions="windowed"), "round ring": dict(multiple=40)}


def fast() -> CausalDiT:
    return quicken(dit(WIDE), LOW)


def packed_at_once(memory: KVRing, layer: int) -> QuantisedKV:
    """All that a ring's layer holds, with the means that it has."""
    k, v, _ = memory.span(layer, rounded=False)
    packed = QuantisedKV.room(len(k), memory.k.shape[2], *k.shape[2:], device=k.device)
    assert memory.packed is not None
    packed.k_mean_RNH.copy_(memory.packed.layer(layer).k_mean_RNH)
    packed.v_mean_RNH.copy_(memory.packed.layer(layer).v_mean_RNH)
    pack_runs(packed, k, v, torch.zeros(1, dtype=torch.int64), k.shape[1])
    return packed


@pytest.mark.parametrize("kind", KINDS)
def test_it_stays_near_the_plain_path(kind: str) -> None:
    expected = chunks(dit(WIDE), ring(WIDE, **KINDS[kind]))
    assert 1e-4 <= relative_error(chunks(fast(), ring(WIDE, **KINDS[kind])), expected) <= 0.03


def test_a_bias_on_the_past_is_attended_to_in_full_precision() -> None:
    expected = chunks(dit(WIDE), ring(WIDE), kv_bias=0.4)
    assert relative_error(chunks(fast(), ring(WIDE), kv_bias=0.4), expected) <= 2e-6


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_calls_give_the_same_bits(kind: str) -> None:
    tape = ActiveRecording()
    model = dit(WIDE)
    expected = stream(quicken(deepcopy(model), LOW), ring(WIDE, **KINDS[kind]), 14)
    model.blocks = RecordedStack(model.blocks, replace(LOW, graphs=True), tape)
    assert torch.equal(stream(model, ring(WIDE, **KINDS[kind]), 14), expected)
    assert tape.recorded == 2
    assert tape.replayed > 30


@torch.inference_mode()
def test_following_the_placed_frames_gives_what_packing_everything_would() -> None:
    model = fast()
    memory = ring(WIDE)
    cross = model.read_prompt(torch.randn(1, 7, 24))
    for number in range(5):
        memory.place([3 * number, 3 * number + 1, 3 * number + 2])
        for _ in range(2):
            model(torch.randn(1, 3, 4, 8, 12), torch.full((1, 3), 700.0), memory, cross)
        assert memory.packed is not None
        for layer in range(WIDE.layers):
            pairs = zip(
                memory.packed.layer(layer).tensors, packed_at_once(memory, layer).tensors, strict=True
            )
            assert all(torch.equal(found.float(), wanted.float()) for found, wanted in pairs)
            assert bool(memory.packed.layer(layer).v_mean_RNH.any()) == (number > 0), "of the frames before"


@pytest.mark.parametrize("kind", [{}, dict(sink=2, positions="windowed")], ids=["ring", "sink"])
@torch.inference_mode()
def test_a_window_that_was_saved_or_moved_goes_on_to_the_same_bits(kind: dict[str, object]) -> None:
    model = fast()
    memory = ring(WIDE, **kind)
    stream(model, memory, 5)
    assert "packed" not in memory.state(), "nothing of it is state"
    revived = ring(WIDE, **kind)
    moved = deepcopy(memory)
    revived.resume(memory.state(), memory.slots.frames, memory.slots.written)
    moved.window.packed = None  # as a ring has none on another device
    cross = model.read_prompt(torch.ones(1, 7, 24))
    latents = torch.randn(1, 3, 4, 8, 12)
    flows = []
    for each in (memory, revived, moved):
        each.place([15, 16, 17])
        flows.append(model(latents, torch.full((1, 3), 700.0), each, cross))
    assert torch.equal(flows[1], flows[0])
    assert torch.equal(flows[2], flows[0])


@torch.inference_mode()
def test_an_epoch_does_not_depend_on_the_one_before_it() -> None:
    model = fast()
    used = ring(WIDE)
    fresh = ring(WIDE)
    stream(model, used, 5)
    used.reset()
    assert torch.equal(stream(model, used, 4), stream(model, fresh, 4))


@torch.inference_mode()
def test_sessions_that_share_calls_keep_their_own() -> None:
    model = fast()
    rings = [ring(WIDE) for _ in range(2)]
    prompts = [model.read_prompt(torch.randn(1, 7, 24)) for _ in range(2)]
    rings[0].place([0, 1, 2])
    rings[1].place([0, 1, 2])
    rings[1].place([3, 4, 5])
    latents = torch.randn(2, 3, 4, 8, 12)
    level = torch.full((2, 3), 700.0)
    alone = [model(latents[i : i + 1], level[:1], rings[i], prompts[i]) for i in range(2)]
    together = model(latents, level, JointMemory(rings), join_prompts(prompts))
    assert relative_error(together, torch.cat(alone)) <= 5e-3, "numbers on an edge round the other way"


@torch.inference_mode()
def test_a_ring_of_several_rows_is_packed_row_by_row() -> None:
    model = fast()
    rings = [ring(WIDE) for _ in range(2)]
    wide = KVRing(replace(rings[0].shape, batch=2), device=torch.device("cpu"), dtype=torch.float32)
    text = torch.randn(2, 7, 24)
    latents = torch.randn(2, 3, 4, 8, 12)
    level = torch.full((2, 3), 700.0)
    for each in (wide, *rings):
        each.place([0, 1, 2])
    alone = [
        model(latents[i : i + 1], level[:1], rings[i], model.read_prompt(text[i : i + 1])) for i in range(2)
    ]
    assert relative_error(model(latents, level, wide, model.read_prompt(text)), torch.cat(alone)) <= 5e-3


@torch.inference_mode()
def test_a_commit_carried_by_the_next_chunk_sees_and_leaves_what_it_should() -> None:
    model = fast()
    apart = ring(WIDE)
    paired = ring(WIDE)
    cross = model.read_prompt(torch.randn(1, 7, 24))
    latents = torch.randn(4, 1, 3, 4, 8, 12)
    level = torch.full((1, 3), 800.0)
    for number in range(3):
        for memory in (apart, paired):
            memory.place([3 * number, 3 * number + 1, 3 * number + 2])
            model(latents[number], level, memory, cross)
        if number < 2:
            for memory in (apart, paired):
                model.commit(latents[number], torch.zeros(1, 3), memory, cross)
    owed = DeferredCommit.to_carry(latents[2], 0.0, paired)
    model.commit(latents[2], torch.zeros(1, 3), apart, cross)
    for memory in (apart, paired):
        memory.place([9, 10, 11])
    expected = model(latents[3], level, apart, cross)
    found = owed.carried_by(Call("step", latents[3], level, paired, cross)).answered_by(model)
    assert found is not None
    assert relative_error(found[:, 3:], expected) <= 0.02, "the mean is of keys before the commit"
    assert relative_error(paired.v, apart.v) <= 0.02


def test_what_it_holds_is_what_is_declared() -> None:
    dit_config = MODELS["brook"].dit
    config = MODELS["brook"].stream
    memory = KVRing(RingShape.of(dit_config, config), device=torch.device("cpu"), dtype=torch.bfloat16)
    before = memory.num_bytes
    memory.place([0, 1, 2])
    memory.pack()
    assert memory.num_bytes - before == packed_bytes(dit_config, config)
    assert packed_bytes(dit_config, config) == pytest.approx(before / 2, rel=0.01), (
        "half of bf16, and a few scales"
    )


def test_admission_counts_it() -> None:
    spec = MODELS["wan2.1-t2v-1.3b"]
    with_it, without = (
        session_bytes(spec, spec.stream, torch.bfloat16, speed) for speed in (LOW, Speed(blocks=True))
    )
    assert with_it - without == packed_bytes(spec.dit, spec.stream)


@pytest.mark.parametrize("paired", [False, True], ids=["commits alone", "commits carried"])
def test_a_session_is_saved_without_it_and_goes_on_to_the_same_bits(paired: bool, tmp_path: Path) -> None:
    speed = replace(LOW, paired_commits=paired)
    engine = Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32", speed=speed)
    with engine.session("sea", height=32, width=48, window=6, sink=1) as session:
        list(session.stream(4))
        path = tmp_path / "saved.safetensors"
        snapshot.write(snapshot.capture(engine, session, engine.fingerprint()), path)
        expected = [chunk.digest for chunk in session.stream(3)]
    with snapshot.revive(snapshot.read(path, engine, engine.fingerprint()), engine, "another") as revived:
        assert [chunk.digest for chunk in revived.stream(3)] == expected


def test_a_plan_counts_it_for_each_session() -> None:
    spec = MODELS["wan2.1-t2v-1.3b"]
    device = find_device("h200")
    needs = [
        device_needs(
            Workload(spec=spec, stream=spec.stream, software=software_of(speed)), device, Topology()
        )[0]
        for speed in (ALL, replace(ALL, low_attention=True))
    ]
    assert needs[1].bytes_for(3) - needs[0].bytes_for(3) == 3 * packed_bytes(spec.dit, spec.stream)


def test_it_is_asked_for_by_name_and_needs_fast_blocks() -> None:
    assert not ALL.low_attention
    assert parse_speed("on,low_attention") == replace(ALL, low_attention=True)
    assert str(LOW) == "blocks,low_attention"
    with pytest.raises(ConfigError, match="switch blocks on too"):
        parse_speed("low_attention")


@pytest.mark.parametrize(
    ("capability", "triton", "dtype", "head", "said"),
    [
        ((8, 9), True, torch.bfloat16, 128, "An old card cannot attend in 8 bits"),
        ((9, 0), False, torch.bfloat16, 128, "written in Triton"),
        ((9, 0), True, torch.float32, 128, "not torch.float32 and 128"),
        ((9, 0), True, torch.bfloat16, 24, "not torch.bfloat16 and 24"),
    ],
)
def test_it_is_refused_in_one_line_where_it_cannot_run(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    triton: bool,
    dtype: torch.dtype,
    head: int,
    said: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "An old card")
    monkeypatch.setattr(apply, "has_triton", lambda: triton)
    with pytest.raises(DeviceError, match=said) as refusal:
        apply._refuse_without_low_attention(torch.device("cuda"), dtype, head)
    assert "\n" not in str(refusal.value)
    assert "--fast" in str(refusal.value)
