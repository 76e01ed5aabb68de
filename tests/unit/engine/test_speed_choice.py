"""Which speed-ups run where: what `auto` stands for, and what is left of what was asked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from millstream.commands.engine_from_options import resolve
from millstream.commands.options import ModelOptions
from millstream.core.errors import ConfigError
from millstream.core.presets import MODELS
from millstream.core.speed import ALL, FP8_GROUPS, Speed, dtype_of, parse_speed
from millstream.core.topology import LOCAL, Topology
from millstream.engine import speed_choice
from millstream.engine.engine import Engine
from millstream.engine.speed_choice import automatic_speed, fitting_speed
from millstream.models.brook.files import Beside
from millstream.models.fast.recorded import RecordedStack
from tests.unit.models_for_tests import relative_error

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
GPU = torch.device("cuda")
BF16 = torch.bfloat16
FP32 = torch.float32


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(speed_choice, "has_triton", lambda: True)
    monkeypatch.setattr(speed_choice, "find_convolution", object)


@pytest.mark.usefixtures("hopper")
def test_auto_is_everything_that_costs_no_quality_on_one_gpu() -> None:
    assert automatic_speed(GPU, BF16, LOCAL) == ALL
    assert not automatic_speed(GPU, BF16, LOCAL).fp8


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("device", "dtype", "topology"),
    [
        (CPU, BF16, LOCAL),
        (GPU, FP32, LOCAL),
        (GPU, BF16, Topology.parse("front+tp2")),
        (GPU, BF16, Topology.parse("front+1")),
    ],
    ids=["cpu", "float32", "tp2", "front and mesh"],
)
def test_auto_is_plain_elsewhere(device: torch.device, dtype: torch.dtype, topology: Topology) -> None:
    assert automatic_speed(device, dtype, topology) == Speed()


@pytest.mark.usefixtures("hopper")
def test_what_needs_plain_blocks_keeps_them_and_the_decoder_is_fast_all_the_same() -> None:
    assert automatic_speed(GPU, BF16, LOCAL, plain_blocks=True) == Speed(decoder=True, own_convolution=True)


BESIDE = Beside(Path("ranges"), Path("decoder"))


@pytest.mark.parametrize(
    ("kind", "expected"), [("amx", False), ("vnni", True), ("avx2", True), ("other", False)]
)
def test_brook_on_a_cpu_is_in_bytes_where_that_is_quicker(
    kind: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed_choice, "cpu_kind", lambda: kind)
    assert automatic_speed(CPU, FP32, LOCAL, beside=BESIDE) == Speed(int8=expected, thin_decoder=True)
    assert not automatic_speed(CPU, FP32, LOCAL).any
    assert not automatic_speed(CPU, FP32, Topology.parse("front+tp2"), beside=BESIDE).any
    assert automatic_speed(CPU, FP32, LOCAL, plain_blocks=True, beside=BESIDE) == Speed(thin_decoder=True)


def test_bytes_and_the_thin_decoder_are_left_out_where_they_cannot_be(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = Speed(int8=True, thin_decoder=True)
    with caplog.at_level(logging.INFO):
        assert fitting_speed(asked, MODELS["brook"], CPU, FP32, beside=BESIDE) == asked
        assert not fitting_speed(asked, MODELS["brook"], CPU, FP32).any
        assert fitting_speed(asked, MODELS["brook"], CPU, BF16, beside=BESIDE) == Speed(thin_decoder=True)
        assert fitting_speed(asked, MODELS["brook"], GPU, BF16, beside=BESIDE) == Speed(thin_decoder=True)
    assert "no ranges were measured" in caplog.messages[0]
    assert "these weights of brook have none" in caplog.messages[0]
    assert "bytes stand for float32" in caplog.messages[1]
    assert "on a CPU" in caplog.messages[2]


def test_who_names_a_precision_gets_that_one() -> None:
    automatic = Speed(int8=True, thin_decoder=True)
    assert parse_speed("auto", "auto", automatic=automatic) == automatic
    assert not parse_speed("auto", "fp32", automatic=automatic).any
    assert parse_speed("auto,thin_decoder", "fp32", automatic=automatic) == Speed(thin_decoder=True)
    assert not parse_speed("off", "auto", automatic=automatic).any
    assert parse_speed("off", "int8") == Speed(int8=True)
    with pytest.raises(ConfigError, match="switch blocks off"):
        parse_speed("blocks", "int8")
    with pytest.raises(ConfigError, match="fp8: only fast blocks"):
        parse_speed("off", "fp8", automatic=automatic)


def test_auto_is_plain_on_an_old_gpu_and_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(speed_choice, "has_triton", lambda: True)
    assert automatic_speed(GPU, BF16, LOCAL) == Speed()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(speed_choice, "has_triton", lambda: False)
    assert automatic_speed(GPU, BF16, LOCAL) == Speed()


@pytest.mark.usefixtures("hopper")
def test_brook_on_a_gpu_is_fast_but_for_its_own_vae_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        found = fitting_speed(ALL, MODELS["brook"], GPU, BF16)
    assert found == Speed(blocks=True, round_keys=True, graphs=True)
    (line,) = caplog.messages
    assert "decoder, since brook has a VAE of its own" in line
    assert fitting_speed(ALL, MODELS["wan2.1-t2v-1.3b"], GPU, BF16) == ALL


def test_what_only_a_gpu_has_is_left_plain_on_a_cpu() -> None:
    asked = replace(ALL, paired_commits=True, fp8=FP8_GROUPS)
    kept = Speed(blocks=True, round_keys=True, decoder=True, paired_commits=True, fp8=FP8_GROUPS)
    assert fitting_speed(asked, MODELS["wan-tiny"], CPU, FP32) == kept


@pytest.mark.usefixtures("hopper")
def test_sums_of_attention_are_asked_for_where_there_are_any() -> None:
    wide = replace(MODELS["brook"], dit=replace(MODELS["brook"].dit, heads=1))
    assert not fitting_speed(Speed(blocks=True, round_keys=True), wide, GPU, BF16).round_keys
    assert not fitting_speed(Speed(blocks=True, round_keys=True), MODELS["brook"], GPU, FP32).round_keys


@pytest.mark.parametrize(
    ("text", "precision", "automatic", "expected"),
    [
        ("auto", "auto", ALL, ALL),
        ("auto", "auto", None, Speed()),
        ("auto,-graphs", "bf16", ALL, replace(ALL, graphs=False)),
        ("auto,paired_commits", "auto", ALL, replace(ALL, paired_commits=True)),
        ("auto", "fp8", None, Speed(blocks=True, fp8=FP8_GROUPS)),
        (
            "auto",
            "fp8",
            Speed(int8=True, thin_decoder=True),
            Speed(blocks=True, thin_decoder=True, fp8=FP8_GROUPS),
        ),
        ("auto", "auto", replace(ALL, fp8=("mlp",)), replace(ALL, fp8=("mlp",))),
        ("auto", "bf16", replace(ALL, fp8=("mlp",)), ALL),
        ("off", "auto", replace(ALL, fp8=("mlp",)), Speed()),
    ],
)
def test_auto_stands_for_what_is_automatic_there(
    text: str, precision: str, automatic: Speed | None, expected: Speed
) -> None:
    assert parse_speed(text, precision, automatic=automatic) == expected


def test_a_precision_is_a_dtype_and_products_that_may_be_shorter() -> None:
    assert [dtype_of(word) for word in ("auto", "bf16", "bfloat16", "fp8", "fp32", "float32")] == [
        "auto", "bfloat16", "bfloat16", "bfloat16", "float32", "float32",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="--precision must be auto"):
        dtype_of("int4")


def test_a_speed_says_itself_in_words() -> None:
    assert str(Speed()) == "off"
    assert str(Speed(blocks=True, graphs=True)) == "blocks,graphs"
    assert str(Speed(blocks=True, fp8=("mlp", "out"))) == "blocks,fp8 (mlp out)"


def test_a_request_resolves_what_it_wants_for_the_device_it_names() -> None:
    options = ModelOptions(model="wan-tiny", weights=["random"], device="cpu", precision="fp32")
    assert resolve(options) == replace(options.engine(), dtype="float32")
    asked = replace(options, fast="blocks,round_keys")
    assert resolve(asked).speed == Speed(blocks=True, round_keys=True)


def test_the_same_weights_have_one_fingerprint_at_any_speed_and_wherever_the_text_encoder_is() -> None:
    def engine(**how: object) -> Engine:
        return Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32", **how)

    plain = engine()
    fast = engine(speed=replace(ALL, fp8=FP8_GROUPS), offload_text=True)
    assert fast.speed.names == ("blocks", "fp8", "round_keys", "decoder")
    assert fast.fingerprint() == fast.model.fingerprint() == plain.fingerprint()
    assert (
        engine(speed=Speed(decoder=True)).fingerprint()
        != Engine("wan-tiny", weights="random:4", device="cpu").fingerprint()
    )


class Counter:
    """Stands for CUDA graphs where only their number is looked at: makes none, and replays nothing."""

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def __call__(self, run: Callable[[], object]) -> Callable[[], object]:
        self.recorded += 1
        return self.count

    def count(self) -> None:
        self.replayed += 1


@pytest.mark.parametrize("paired", [False, True], ids=["commits alone", "commits carried"])
@pytest.mark.parametrize(
    "stream", [dict(window=6), dict(window=7, steps=(1000.0, 750.0, 500.0, 250.0))], ids=str
)
def test_nothing_is_recorded_after_a_session_is_called_warm(paired: bool, stream: dict[str, object]) -> None:
    engine = Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32")
    graphs = Counter()
    engine.speed = Speed(blocks=True, graphs=True, paired_commits=paired)
    engine.model.dit.blocks = RecordedStack(engine.model.dit.blocks, engine.speed, graphs)
    engine.generator.commits = "paired" if paired else "later"
    config = engine.stream_config(height=16, width=32, **stream)
    with engine.session("sea", config=config) as session:
        assert len(list(session.stream(engine.chunks_until_warm(config)))) > 1
        recorded = graphs.recorded
        replayed = graphs.replayed
        list(session.stream(3))
    assert graphs.recorded == recorded > 0
    assert graphs.replayed - replayed == 3 * (len(config.steps) + (not paired)), "every call"


def test_a_warm_engine_has_recorded_windows_that_fill_too() -> None:
    engine = Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32")
    graphs = Counter()
    engine.speed = Speed(blocks=True, graphs=True)
    engine.model.dit.blocks = RecordedStack(engine.model.dit.blocks, engine.speed, graphs)
    config = engine.stream_config(height=16, width=32, window=6, steps=(1000.0, 750.0, 500.0, 250.0))
    with engine.session("sea", config=config) as session:
        engine.warm_up(session)
    assert graphs.recorded == 2 * config.chunks_to_fill, (
        "steps and commit, at every level the window is filled to"
    )


def test_a_stream_is_the_same_with_its_text_encoder_at_home() -> None:
    at_home = Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32", offload_text=True)
    there = Engine("wan-tiny", weights="random:3", device="cpu", dtype="float32")
    assert at_home.visiting_bytes > 0 == there.visiting_bytes
    small = dict(height=16, width=32, window=6)
    one, other = ([c.digest for c in engine.session("sea", **small).stream(3)] for engine in (at_home, there))
    assert one == other
    embedding = at_home.model.text.encode("sea")
    assert relative_error(embedding, there.model.text.encode("sea")) == 0
