"""Phases as wholes: what they must compute, which kernels are theirs, and what they reach where kernels carry
no shapes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.chunk_work import Part, chunk_parts
from millstream.core.presets import MODELS
from millstream.core.speed import ALL, FP8_GROUPS, Speed
from millstream.core.trace import Work, span_label
from millstream.planner.hardware import DEVICES
from millstream.profiler.reach.ceilings import peak
from millstream.profiler.reach.told_work import phase_parts
from millstream.profiler.reading import Reading, read
from millstream.profiler.simulated_rank import SimulatedRank

H200 = DEVICES["h200"]


def about(model: str = "wan2.1-t2v-1.3b", speed: Speed = ALL, **changes: Any) -> dict[str, Any]:
    """What `profile run` writes into a trace."""
    stream = MODELS[model].stream
    return {
        "model": model,
        "topology": "local",
        "size": f"{stream.height}x{stream.width}",
        "window": stream.window,
        "frames_per_chunk": stream.frames_per_chunk,
        "steps": list(stream.steps),
        "dtype": "bfloat16",
        "fast": str(speed),
        **changes,
    }


@pytest.mark.parametrize("model", ["wan2.1-t2v-1.3b", "wan2.1-t2v-14b", "brook"])
def test_a_phase_has_the_work_of_the_model_and_stream_that_its_trace_names(model: str) -> None:
    spec = MODELS[model]
    assert phase_parts(about(model)) == chunk_parts(spec, spec.stream, value_bytes=2)


def test_only_what_runs_in_8_bits_is_held_against_their_ceiling() -> None:
    def eight_bit(speed: Speed) -> list[bool]:
        return [part.eight_bit for part in phase_parts(about(speed=speed))["step"]]

    assert eight_bit(ALL) == [False] * 7
    assert eight_bit(Speed(blocks=True, fp8=FP8_GROUPS)) == [True] * 5 + [False] * 2
    assert eight_bit(Speed(blocks=True, fp8=("qkv", "mlp"))) == [True, False, False, True, True, False, False]
    assert eight_bit(Speed(blocks=True, low_attention=True)) == [False] * 5 + [True, False]
    assert peak(H200.rates, "product", eight_bit=True) == H200.rates.fp8_tflops
    assert peak(DEVICES["a100"].rates, "product", eight_bit=True) == DEVICES["a100"].rates.matmul_tflops


def test_a_chunk_of_fewer_frames_has_less_work() -> None:
    three, one = (phase_parts(about(frames_per_chunk=frames, window=6))["step"] for frames in (3, 1))
    assert sum(part.flops for part in one) == pytest.approx(sum(part.flops for part in three) / 3)


@pytest.mark.parametrize(
    "unknown",
    [
        {"model": "another"},
        {"model": ["wan-tiny"]},
        {"topology": "front+tp2"},
        {"dtype": "float64"},
        {"size": "480"},
        {"size": None},
        {"window": "wide"},
        {"steps": 4},
        {"steps": [1, 2]},
        {"frames_per_chunk": 0},
        {"frames_per_chunk": float("inf")},
    ],
)
def test_what_a_trace_does_not_say_clearly_is_not_counted(unknown: dict[str, Any]) -> None:
    assert phase_parts(about())
    assert phase_parts({**about(), **unknown}) == {}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@given(st.sampled_from(sorted(about())), anything)
def test_whatever_a_trace_says_of_itself_it_is_counted_or_not(key: str, value: object) -> None:
    for parts in phase_parts({**about("wan-tiny"), key: value}).values():
        assert all(part.flops > 0 and part.moved > 0 for part in parts)


def floor_us(parts: tuple[Part, ...]) -> float:
    rates = H200.rates
    held = (max(part.flops / peak(rates, part.family), part.moved / rates.bandwidth_tb_s) for part in parts)
    return sum(held) / 1e6


def step_of_a_graph(folder: Path, said: dict[str, Any], *, reach: float) -> Reading:
    """Two chunks whose steps are one graph each, and a third of that time again that belongs to no phase."""
    rank = SimulatedRank(0, H200, random.Random(1), noise=0.0)
    length = floor_us(phase_parts(said)["step"]) / reach / 40
    for chunk in range(2):
        with rank.note(span_label("step", Work(session="s", chunk=chunk, call=chunk)), on_device=True):
            rank.graph(40, length, lost=False)
        rank.graph(13, length, lost=False)
    path = rank.write(folder, 1)
    path.write_text(json.dumps({**json.loads(path.read_text()), "millstream": said}))
    return read([path])


@pytest.mark.parametrize(("size", "bound"), [("480x832", "compute-bound"), ("64x64", "memory-bound")])
def test_a_phase_near_its_ceilings_names_the_bound_but_never_for_certain(
    tmp_path: Path, size: str, bound: str
) -> None:
    found = step_of_a_graph(tmp_path, about(size=size), reach=0.8)
    (roof,), verdict = found.roofs, found.diagnosis.verdict
    (step,) = roof.phases
    assert (step.name, step.kernels) == ("step", 80)
    assert step.reached == pytest.approx(0.8, rel=0.01)
    assert (verdict.name, verdict.confidence) == (bound, "medium"), verdict
    assert roof.counted_ms == pytest.approx(roof.work_ms * 40 / 53, rel=0.01)
    assert roof.graphed_ms == pytest.approx(roof.work_ms * 13 / 53, rel=0.01), "no phase's: not known"


def test_a_phase_far_from_its_ceilings_is_known_and_not_explained(tmp_path: Path) -> None:
    verdict = step_of_a_graph(tmp_path, about(), reach=0.4).diagnosis.verdict
    assert verdict.name == "unexplained"
    assert any("step 40%" in line for line in verdict.evidence), verdict.evidence
    assert "shapes" not in verdict.advice


def test_nothing_is_counted_against_a_device_nobody_knows(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    step_of_a_graph(tmp_path, about(), reach=0.8)
    path.write_text(path.read_text().replace("NVIDIA H200", "NVIDIA T1000"))
    found = read([path])
    assert found.roofs[0].phases == ()
    assert found.diagnosis.verdict.name == "unexplained"
    assert "record once without graphs; name the device" in found.diagnosis.verdict.advice


def test_kernels_with_shapes_speak_for_themselves_whatever_phase_they_are_in(tmp_path: Path) -> None:
    rank = SimulatedRank(0, H200, random.Random(1), noise=0.0)
    with rank.note(span_label("step", Work(session="s", chunk=0, call=0)), on_device=True):
        for _ in range(20):
            rank.product(8192, 8192, 8192, reach=0.9)
    path = rank.write(tmp_path, 1)
    path.write_text(json.dumps({**json.loads(path.read_text()), "millstream": about("wan-tiny")}))
    found = read([path])
    assert found.roofs[0].phases == ()
    assert (found.diagnosis.verdict.name, found.diagnosis.verdict.confidence) == ("compute-bound", "high")


def test_what_runs_beside_a_phase_on_another_stream_is_not_its_own(tmp_path: Path) -> None:
    def kernels(move: bool) -> int:
        step_of_a_graph(tmp_path, about(), reach=0.8)
        path = tmp_path / "rank0.json"
        record = json.loads(path.read_text())
        ran = [event for event in record["traceEvents"] if event["cat"] == "kernel"]
        if move:
            ran[5]["tid"] = 99
        path.write_text(json.dumps(record))
        (step,) = read([path]).roofs[0].phases
        return step.kernels

    assert (kernels(move=False), kernels(move=True)) == (80, 79)
