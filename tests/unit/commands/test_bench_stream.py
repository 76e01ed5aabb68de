"""What `bench stream` and `bench quality` say is what was measured, and it adds up."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from millstream.commands.bench import floor as stream_floor
from millstream.commands.bench import group as bench_commands
from millstream.commands.bench import overlap as bench_overlap
from millstream.commands.bench.floor import Setting, measure_floor
from millstream.commands.bench.overlap import OverlapRequest
from millstream.commands.bench.quality import INFINITE_DB, QualityRequest, Streamed, compare, psnr
from millstream.commands.bench.quality import measure as measure_quality
from millstream.commands.bench.sessions import MIB, measure_sessions
from millstream.commands.bench.stream import StreamRequest, measure
from millstream.commands.generate import generate
from millstream.commands.main import app
from millstream.core.chunk_work import call_flops, chunk_parts, tokens_per_frame
from millstream.core.config import BrookVAEConfig
from millstream.core.engine_config import EngineConfig
from millstream.core.errors import ConfigError
from millstream.core.presets import MODELS
from millstream.core.speed import ALL, FP8_GROUPS, Speed, parse_speed
from millstream.core.vae_layers import decoder_convs
from millstream.models.brook.thin import THIN
from millstream.ops.int8 import Int8Linear, is_available
from millstream.ops.waves import Waves
from millstream.planner.peaks import vae_state_bytes

pytestmark = pytest.mark.slow

TINY = MODELS["wan-tiny"]
BYTES = Speed(int8=True, thin_decoder=True)
ON_CPU = EngineConfig(model="wan-tiny", weights=("random",), device="cpu", dtype="float32")


def test_a_chunks_phases_and_the_rest_add_up_to_it() -> None:
    request = StreamRequest(engine=replace(ON_CPU, speed=ALL), chunks=1)
    measured = measure(request, TINY.stream)
    phases = measured["phases"]
    assert sum(phase["ms"] for phase in phases.values()) == pytest.approx(measured["chunk_ms"]["p50"])
    assert sum(measured["calls_ms"]) == pytest.approx(phases["step"]["ms"])
    assert phases["rest"]["ms"] >= 0
    assert len(measured["calls_ms"]) == len(TINY.stream.steps)
    assert all(
        phases[name]["floor_ms"] > 0 and phases[name]["tflop_s"] > 0 for name in ("step", "commit", "decode")
    )
    assert measured["fps"] > 0
    assert sum(measured["first_phases_ms"].values()) <= 1e3 * measured["first_frame_s"]["warm"]


class Counting:
    """A convolution that takes every 3x3x3 weight and counts its calls."""

    def __init__(self) -> None:
        self.canvases: list[tuple[int, ...]] = []

    def pack(self, weight_OITYX: Tensor) -> Tensor | None:
        return weight_OITYX if weight_OITYX.shape[2:] == (3, 3, 3) else None

    def __call__(self, canvas: Tensor, packed_weight: Tensor) -> Tensor:
        self.canvases.append(tuple(canvas.shape))
        return canvas


def test_the_floor_has_our_convolution_where_there_is_one() -> None:
    own = Counting()
    stream = TINY.stream
    setting = Setting(device=torch.device("cpu"), dtype=torch.float32, fp8=False, own=own)
    measure_floor(TINY, stream, setting, chunks=1)
    convs = [
        conv
        for conv in decoder_convs(TINY.vae, stream.frames_per_chunk, stream.height, stream.width)
        if conv.taps == 27
    ]
    expected = [(conv.frames + 2, conv.rows + 2, conv.columns + 2, conv.inner) for conv in convs]
    assert own.canvases == 2 * expected, "to warm up, and once"


@pytest.mark.parametrize("even", [False, True])
def test_an_even_floor_attends_in_waves_and_the_other_in_one_call(
    even: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def waves(q_BLNH: Tensor, k_BWNH: Tensor) -> Waves | None:
        asked.append((q_BLNH.shape[1], k_BWNH.shape[1]))
        return Waves(1, k_BWNH.shape[1])

    monkeypatch.setattr(stream_floor, "waves_of", waves)
    setting = Setting(device=torch.device("cpu"), dtype=torch.float32, fp8=False, even=even)
    assert set(measure_floor(TINY, TINY.stream, setting, chunks=1)) == {"step", "commit", "decode"}
    tokens = tokens_per_frame(TINY.dit, TINY.stream)
    chunk = TINY.stream.frames_per_chunk * tokens
    window = TINY.stream.window * tokens
    assert asked == (2 * [(chunk, window), (chunk, TINY.dit.text_tokens)] if even else []), (
        "two sets of a layer"
    )


@pytest.mark.skipif(not is_available(), reason="this build of torch has no oneDNN")
def test_a_floor_has_the_layers_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a stream in bytes, by the thin decoder, is faster than its floor."""
    products = list[tuple[int, ...]]()
    of_bytes = Int8Linear.of_bytes
    decoders: list[object] = []

    def counted(layer: Int8Linear, x_u8: Tensor) -> Tensor:
        products.append(tuple(x_u8.shape))
        return of_bytes(layer, x_u8)

    def listed(vae: BrookVAEConfig, *shape: int) -> object:
        decoders.append(vae)
        return decoder_convs(vae, *shape)

    monkeypatch.setattr(Int8Linear, "of_bytes", counted)
    monkeypatch.setattr(stream_floor, "decoder_convs", listed)
    brook = EngineConfig(model="brook", weights=("bundled",), device="cpu", dtype="float32", speed=BYTES)
    stream = replace(MODELS["brook"].stream, height=32, width=32)
    phases = measure(StreamRequest(engine=brook, chunks=1), stream)["phases"]
    layers = MODELS["brook"].dit.layers
    calls = layers * len(stream.steps) + layers - 1
    of_floor = [shape for shape in products if len(shape) == 2]
    assert len(of_floor) == 2 * calls * 6, "six products of a layer, to warm up, and once"
    assert decoders == [THIN]
    assert phases["decode"]["tflop_s"] == pytest.approx(
        sum(
            part.flops
            for part in chunk_parts(replace(MODELS["brook"], vae=THIN), stream, value_bytes=4)["decode"]
        )
        / phases["decode"]["ms"]
        / 1e9
    )


@pytest.mark.parametrize("name", ["fast", "precision"])
def test_it_measures_what_people_get_unless_something_else_is_asked_for(name: str) -> None:
    defaults = {
        inspect.signature(command).parameters[name].default for command in (bench_commands.stream, generate)
    }
    assert defaults == {"auto"}


def test_the_work_of_a_chunk_is_counted_by_the_planners_rules() -> None:
    spec = MODELS["wan2.1-t2v-1.3b"]
    parts, in_bytes = (
        chunk_parts(spec, spec.stream, value_bytes=2, fp8=groups) for groups in ((), FP8_GROUPS)
    )
    flops = {name: sum(part.flops for part in phase) for name, phase in parts.items()}
    tokens = 3 * 1560
    keys = 21 * 1560
    assert flops["step"] == 4 * call_flops(spec.dit, tokens, keys)
    assert flops["commit"] == pytest.approx(29 / 30 * flops["step"] / 4)
    assert flops["decode"] == pytest.approx(40.5e12, rel=0.03)
    assert sum(part.moved for part in in_bytes["step"]) < sum(part.moved for part in parts["step"])


def test_the_plain_path_against_itself_costs_nothing() -> None:
    request = QualityRequest(engine=ON_CPU, chunks=2, exact=False)
    small = replace(TINY.stream, height=16, width=16)  # bfloat16 is emulated on some processors
    found = measure_quality(request, small)["fast against bfloat16"]
    assert found["latents_largest"] == 0
    assert found["psnr_db_lowest"] == INFINITE_DB


def test_errors_are_those_of_the_worst_chunk_too() -> None:
    wanted = Streamed([torch.ones(4), torch.ones(4)], [np.zeros((1, 2, 2, 3), np.uint8)] * 2)
    found = Streamed(
        [torch.ones(4), torch.tensor([1.0, 1.0, 1.0, 3.0])], [wanted.frames[0], wanted.frames[0] + 255]
    )
    compared = compare(found, wanted)
    assert compared["relative_by_chunk"] == [0.0, 1.0]
    assert compared["latents_largest"] == 2.0
    assert (
        compared["psnr_db_lowest"]
        == pytest.approx(psnr(found.frames[1], wanted.frames[1]))
        == pytest.approx(0.0)
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("off", ()),
        ("on", ("blocks", "round_keys", "even_waves", "decoder", "own_convolution", "graphs")),
        ("on,-graphs,-own_convolution", ("blocks", "round_keys", "even_waves", "decoder")),
        ("decoder", ("decoder",)),
    ],
)
def test_speed_ups_are_named_one_by_one(text: str, names: tuple[str, ...]) -> None:
    assert parse_speed(text).names == names


def test_fp8_is_asked_for_by_precision() -> None:
    assert parse_speed("on", "fp8").fp8 == FP8_GROUPS
    assert parse_speed("on", "bf16").fp8 == ()


@pytest.mark.parametrize(
    ("text", "precision", "said"),
    [
        ("quick", "bf16", "knows no 'quick'"),
        ("off", "fp8", "switch blocks on"),
        ("graphs", "bf16", "switch blocks on"),
        ("own_convolution", "bf16", "switch decoder on"),
        ("blocks,even_waves", "bf16", "switch round_keys on"),
        ("on", "int4", "--precision"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(text: str, precision: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_speed(text, precision)


@pytest.mark.parametrize("together", [False, True], ids=["in turns", "together"])
def test_several_sessions_make_what_each_makes_and_a_further_one_holds_what_it_declared(
    together: bool,
) -> None:
    config = replace(TINY.stream, height=32, width=48, window=6)
    measured = measure_sessions(ON_CPU, config, count=3, together=together, chunks=2)
    assert sum(one["fps"] for one in measured["each"]) == pytest.approx(measured["fps"])
    assert sum(one["share"] for one in measured["each"]) == pytest.approx(1.0, abs=0.1)
    assert all(one["share"] > 0 for one in measured["each"])
    memory = measured["memory_mib"]
    past = vae_state_bytes(TINY.vae, config, value_bytes=4) / MIB
    assert past > 0
    assert memory["keys_and_values"] + past == pytest.approx(memory["declared"]), (
        "on a CPU a ring has no zeros behind it"
    )
    assert measured["round_ms"] > 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (dict(sessions=0), "--sessions"),
        (dict(sessions=65), "--sessions"),
        (dict(together=True), "--sessions 2 or more"),
    ],
)
def test_sessions_that_cannot_be_are_refused(asked: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        StreamRequest(engine=ON_CPU, **asked)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--steps", "1000", "--first-steps", "1000,750,500"],
        ["--sessions", "2", "--together", "--offload-text"],
    ],
    ids=["one", "two"],
)
def test_a_stream_is_measured_from_the_command_line_into_a_folder_that_was_not_there(
    tmp_path: Path, arguments: list[str]
) -> None:
    out = tmp_path / "new" / "stream.json"
    small = [
        "--model",
        "wan-tiny",
        "--weights",
        "random",
        "--size",
        "32x48",
        "--window",
        "6",
        "--precision",
        "fp32",
    ]
    command = [
        "bench",
        "stream",
        *small,
        "--device",
        "cpu",
        "--chunks",
        "1",
        "--no-floor",
        *arguments,
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text())
    assert written["measured"]["fps"] > 0
    assert written["measured"]["dtype"] == "float32"
    assert written["configuration"]["offload_text"] == ("--offload-text" in arguments)
    own = "--first-steps" in arguments
    assert written["configuration"]["stream"]["first_steps"] == ([1000, 750, 500] if own else None)
    assert "frames a second" in result.output


def test_the_overlap_benchmark_makes_its_folder_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "figures" / "overlap.json"
    plot = tmp_path / "drawn" / "overlap.png"

    def measured(request: OverlapRequest, chosen: object) -> list[object]:
        assert out.parent.is_dir()
        assert plot.parent.is_dir()
        return []

    monkeypatch.setattr(bench_overlap, "measure", measured)
    monkeypatch.setattr(bench_overlap, "_draw", lambda path, measured: None)
    bench_overlap.run_bench_overlap(OverlapRequest(), as_json=True, out=out, plot=plot)
    assert json.loads(out.read_text())["measured"] == {"runs": []}
