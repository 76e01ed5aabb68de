"""The fast path against the plain one: the same function, on the twins of its kernels."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from millstream.core.config import DiTConfig
from millstream.core.speed import FP8_GROUPS, Speed
from millstream.models.dit import CausalDiT
from millstream.models.fast import attention as fast_attention
from millstream.models.fast import recorded as fast_recorded
from millstream.models.fast.apply import quicken
from millstream.models.fast.recorded import RecordedStack
from millstream.models.joint import JointMemory, join_prompts
from millstream.models.kv import KVRing
from millstream.models.paired import DeferredCommit
from millstream.models.ring_shape import RingShape
from millstream.models.sampler import Call
from millstream.ops.waves import Waves
from tests.unit.models_for_tests import DIT, dit, relative_error

pytestmark = pytest.mark.slow

GRID = (4, 6)
WIDE = DiTConfig(
    layers=2, width=64, heads=4, ffn=96, channels=4, text_width=24, text_tokens=7, time_features=32
)


def ring(config: DiTConfig, *, multiple: int = 1, sink: int = 0, positions: str = "absolute") -> KVRing:
    shape = RingShape(
        layers=config.layers,
        heads=config.heads,
        head_width=config.head_width,
        grid=GRID,
        window=7,
        sink=sink,
        positions=positions,
    )
    return KVRing(shape, device=torch.device("cpu"), dtype=torch.float32, key_multiple=multiple)


@torch.inference_mode()
def chunks(model: CausalDiT, memory: KVRing, *, kv_bias: float = 1.0, cut_at: int = 4) -> Tensor:
    """Six chunks of steps and commits, a cut among them: flows and what the ring holds."""
    generator = torch.Generator().manual_seed(5)
    cross = model.read_prompt(torch.randn(1, 7, 24, generator=generator))
    found = []
    for number in range(6):
        if number == cut_at:
            memory.reset()
        first = 3 * (number % cut_at)
        memory.place([first, first + 1, first + 2], kv_bias=kv_bias)
        latents = torch.randn(1, 3, 4, 8, 12, generator=generator)
        found.append(model(latents, torch.tensor([[900.0, 500.0, 100.0]]), memory, cross).flatten())
        model.commit(latents, torch.zeros(1, 3), memory, cross)
    return torch.cat([*found, memory.k.flatten(), memory.v.flatten()])


KINDS = {
    "plain ring": {},
    "sink": dict(sink=2, positions="windowed"),
    "round keys": dict(multiple=40),
    "round keys over a sink": dict(multiple=40, sink=2, positions="windowed"),
}


@pytest.mark.parametrize("config", [DIT, WIDE], ids=["head of 24", "head of 16"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_fast_path_computes_what_the_plain_one_does(config: DiTConfig, kind: str) -> None:
    model = dit(config)
    expected = chunks(deepcopy(model), ring(config, **KINDS[kind]))
    fast = quicken(model, Speed(blocks=True, round_keys="round" in kind))
    assert relative_error(chunks(fast, ring(config, **KINDS[kind])), expected) <= 2e-6


@pytest.mark.parametrize("multiple", [40, 1], ids=["zeros among the keys", "none"])
def test_queries_that_attend_to_parts_of_the_keys_are_answered_alike(
    multiple: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def waves(q_BLNH: Tensor, k_BWNH: Tensor) -> Waves:
        asked.append((q_BLNH.shape[1], k_BWNH.shape[1]))
        return Waves(40, 8)

    monkeypatch.setattr(fast_attention, "waves_of", waves)
    model = dit()
    expected = chunks(deepcopy(model), ring(DIT, multiple=multiple))
    fast = quicken(model, Speed(blocks=True, round_keys=True, even_waves=True))
    assert relative_error(chunks(fast, ring(DIT, multiple=multiple)), expected) <= 2e-6
    assert set(asked) == (
        {(72, 80), (72, 160), (72, 200)} if multiple == 40 else {(72, 72), (72, 144), (72, 168)}
    )


def test_a_bias_on_the_past_is_kept() -> None:
    model = dit()
    expected = chunks(deepcopy(model), ring(DIT, multiple=40), kv_bias=0.4)
    fast = quicken(model, Speed(blocks=True, round_keys=True))
    assert relative_error(chunks(fast, ring(DIT, multiple=40), kv_bias=0.4), expected) <= 2e-6


@torch.inference_mode()
def test_sessions_that_share_calls_get_what_they_get_alone() -> None:
    fast = quicken(dit(), Speed(blocks=True, round_keys=True))
    rings = [ring(DIT, multiple=40) for _ in range(2)]
    prompts = [fast.read_prompt(torch.randn(1, 7, 24)) for _ in range(2)]
    rings[0].place([0, 1, 2])
    rings[1].place([0, 1, 2])
    rings[1].place([3, 4, 5])
    latents = torch.randn(2, 3, 4, 8, 12)
    level = torch.full((2, 3), 700.0)
    alone = [fast(latents[i : i + 1], level[:1], rings[i], prompts[i]) for i in range(2)]
    together = fast(latents, level, JointMemory(rings), join_prompts(prompts))
    assert relative_error(together, torch.cat(alone)) <= 1e-6


@pytest.mark.parametrize("multiple", [1, 40])
@torch.inference_mode()
def test_a_ring_of_several_rows_is_several_rings(multiple: int) -> None:
    fast = quicken(dit(), Speed(blocks=True, round_keys=True))
    shape = replace(ring(DIT).shape, batch=3)
    wide = KVRing(shape, device=torch.device("cpu"), dtype=torch.float32, key_multiple=multiple)
    rings = [ring(DIT, multiple=multiple) for _ in range(3)]
    text = torch.randn(3, 7, 24)
    latents = torch.randn(3, 3, 4, 8, 12)
    level = torch.full((3, 3), 700.0)
    for each in (wide, *rings):
        each.place([0, 1, 2])
    alone = [
        fast(latents[i : i + 1], level[:1], rings[i], fast.read_prompt(text[i : i + 1])) for i in range(3)
    ]
    assert relative_error(fast(latents, level, wide, fast.read_prompt(text)), torch.cat(alone)) <= 2e-6


@torch.inference_mode()
def test_a_commit_in_one_call_with_the_next_chunk_is_the_same() -> None:
    fast = quicken(dit(), Speed(blocks=True, round_keys=True))
    apart = ring(DIT, multiple=40)
    paired = ring(DIT, multiple=40)
    cross = fast.read_prompt(torch.randn(1, 7, 24))
    latents = torch.randn(5, 1, 3, 4, 8, 12)
    for number in range(4):
        for memory in (apart, paired):
            memory.place([3 * number, 3 * number + 1, 3 * number + 2])
        if number < 3:
            for memory in (apart, paired):
                fast.commit(latents[number], torch.zeros(1, 3), memory, cross)
    owed = DeferredCommit.to_carry(latents[3], 0.0, paired)
    fast.commit(latents[3], torch.zeros(1, 3), apart, cross)
    for memory in (apart, paired):
        memory.place([12, 13, 14])
    level = torch.full((1, 3), 800.0)
    expected = fast(latents[4], level, apart, cross)
    call = owed.carried_by(Call("step", latents[4], level, paired, cross))
    found = call.answered_by(fast)
    assert found is not None
    assert relative_error(found[:, 3:], expected) <= 2e-6
    assert relative_error(paired.k, apart.k) <= 2e-6


@pytest.mark.parametrize("group", [*FP8_GROUPS, "all"])
def test_fp8_stays_near_and_touches_only_its_group(group: str) -> None:
    model = dit(WIDE)
    expected = chunks(deepcopy(model), ring(WIDE))
    groups = FP8_GROUPS if group == "all" else (group,)
    fast = quicken(model, Speed(blocks=True, fp8=groups))
    error = relative_error(chunks(fast, ring(WIDE)), expected)
    assert 1e-4 <= error <= 0.06
    block = fast.blocks[0]
    attn = block.self_attn
    cross = block.cross_attn
    kinds = {
        "qkv": (attn.qkv,),
        "out": (attn.out,),
        "cross": (cross.q, cross.out),
        "mlp": (block.up, block.down),
    }
    assert all(layer.is_fp8 == (name in groups) for name, layers in kinds.items() for layer in layers)


def test_weights_are_held_once() -> None:
    model = dit()
    before = sum(parameter.numel() for parameter in model.parameters())
    fast = quicken(model, Speed(blocks=True))
    assert sum(parameter.numel() for parameter in fast.parameters()) == before


class ActiveRecording:
    """Stands for a CUDA graph: replays what it was given, and counts."""

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def __call__(self, run: Callable[[], object]) -> Callable[[], object]:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            run()

        return replay


def recorded(model: CausalDiT, tape: ActiveRecording) -> CausalDiT:
    model.blocks = RecordedStack(model.blocks, Speed(blocks=True, round_keys=True, graphs=True), tape)
    return model


@torch.inference_mode()
def stream(model: CausalDiT, memory: KVRing, count: int) -> Tensor:
    """Four steps and a commit a chunk; the prompt changes on the way."""
    generator = torch.Generator().manual_seed(7)
    found = []
    for number in range(count):
        if number % 7 == 0:
            cross = model.read_prompt(torch.randn(1, 7, 24, generator=generator))
        memory.place([3 * number, 3 * number + 1, 3 * number + 2])
        for level in (1000.0, 750.0, 500.0, 250.0):
            latents = torch.randn(1, 3, 4, 8, 12, generator=generator)
            found.append(model(latents, torch.full((1, 3), level), memory, cross))
        model.commit(latents, torch.zeros(1, 3), memory, cross)
    return torch.cat(found)


def test_blocks_that_come_from_elsewhere_are_recorded_anew() -> None:
    """The same ring in the same place, so that only the blocks are others than what was recorded."""
    model = dit()
    other = dit()
    memory = ring(DIT)
    tape = ActiveRecording()
    with torch.no_grad():
        for parameter in other.blocks.parameters():
            parameter.mul_(1.1)
    expected = stream(deepcopy(other), ring(DIT), 8)
    recorded(model, tape)
    stream(model, memory, 8)
    assert tape.recorded == 2
    fast = quicken(other, Speed(blocks=True))
    del model.blocks[:]
    model.blocks.extend(fast.blocks)
    model.blocks.changed(fast.blocks.modulations_N16D)
    memory.reset()
    assert relative_error(stream(model, memory, 8), expected) <= 2e-6
    assert tape.recorded == 4, "all that comes often, once more"


@pytest.mark.parametrize("kind", [{}, dict(sink=2, positions="windowed")], ids=["ring", "sink"])
def test_recorded_calls_compute_what_they_did_before(kind: dict[str, object]) -> None:
    model = dit()
    tape = ActiveRecording()
    expected = stream(deepcopy(model), ring(DIT, multiple=40, **kind), 16)
    assert relative_error(stream(recorded(model, tape), ring(DIT, multiple=40, **kind), 16), expected) <= 2e-6
    assert tape.recorded == 2, "one of steps and one of commits, once the window is full"
    assert tape.replayed > 40


def test_a_window_that_fills_is_not_recorded() -> None:
    tape = ActiveRecording()
    stream(recorded(dit(), tape), ring(DIT), 2)
    assert tape.recorded == 0


def test_a_recording_does_not_hold_the_ring_it_was_made_of() -> None:
    tape = ActiveRecording()
    memory = ring(DIT)
    model = recorded(dit(), tape)
    there = weakref.ref(memory)
    stream(model, memory, 12)
    assert tape.recorded == len(model.blocks._recordings) == 2
    del memory
    gc.collect()
    assert there() is None


def test_what_one_session_does_often_is_recorded_at_once_for_the_next() -> None:
    tape = ActiveRecording()
    rings = [ring(DIT) for _ in range(2)]
    model = recorded(dit(), tape)
    stream(model, rings[0], 12)
    before = model.blocks.one_offs
    stream(model, rings[1], 5)
    assert tape.recorded == 4, "of the second's first full window, and none of one that fills"
    assert model.blocks.one_offs - before == 2 * (4 + 1) + 2, (
        "two chunks that fill its window, and two calls that were recorded"
    )
    stream(model, rings[1], 2)
    assert model.blocks.one_offs - before == 2 * (4 + 1) + 2


def test_shared_calls_are_recorded_once_they_come_often_and_of_other_company_at_once() -> None:
    tape = ActiveRecording()
    rings = [ring(DIT) for _ in range(4)]
    model = recorded(dit(), tape)
    cross = model.read_prompt(torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(7)))

    @torch.inference_mode()
    def together(number: int, *who: int) -> None:
        for index in who:
            rings[index].place([3 * number, 3 * number + 1, 3 * number + 2])
        for level in (1000.0, 750.0, 500.0, 250.0):
            model(
                torch.ones(2, 3, 4, 8, 12),
                torch.full((2, 3), level),
                JointMemory([rings[index] for index in who]),
                cross,
            )
        model.commit(
            torch.ones(2, 3, 4, 8, 12), torch.zeros(2, 3), JointMemory([rings[index] for index in who]), cross
        )

    for number in range(7):
        together(number, 0, 1)
    assert tape.recorded == 2
    for number in range(4):
        together(number, 2, 3)
    assert tape.recorded == 4, "with full windows, which others have had before them"
    assert tape.replayed > 8


def test_recordings_do_not_grow_with_sessions_and_do_not_push_out_what_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fast_recorded, "MAX_RECORDINGS", 3)
    monkeypatch.setattr(fast_recorded, "LONG", 70)
    tape = ActiveRecording()
    rings = [ring(DIT) for _ in range(4)]
    model = recorded(dit(), tape)
    for _ in range(6):  # in turns, each long enough to be recorded
        for each in rings[:3]:
            stream(model, each, 4)
    assert tape.recorded == len(model.blocks._recordings) == 3, "calls of those who came last run as they are"
    before = model.blocks.one_offs
    stream(model, rings[2], 4)
    assert model.blocks.one_offs == before, "that is what they will always take"
    stream(model, rings[3], 24)
    assert tape.recorded == 5, "the others are gone"
    assert len(model.blocks._recordings) == 3
