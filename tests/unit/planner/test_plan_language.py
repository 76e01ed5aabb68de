"""Language models: counts against what is published, times against rates that others measured, and the
command line."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.core.errors import ConfigError
from millstream.planner.explain import Explanation
from millstream.planner.hardware import NETWORK, parse_fleet
from millstream.planner.language.decoders import DECODERS, DecoderConfig, find_decoder, is_decoder
from millstream.planner.language.explain import LANGUAGE, explain_language, explain_speculation, explain_sum
from millstream.planner.language.learning import (
    DecoderWork,
    block_activations,
    data_talk,
    decoder_flops,
    decoder_layouts,
    step_ms,
)
from millstream.planner.language.rewards import RewardAsk, reward_placements
from millstream.planner.language.serving import (
    ServingAsk,
    decode_time,
    prefill_time,
    speculative_gain,
    texts_that_fit,
    tokens_a_call,
)
from millstream.planner.training import Sharding

GPT_FAST = (
    ("llama-2-7b", "A100", "native", 104.9),
    ("llama-2-7b", "2xA100", "native", 168.84),
    ("llama-2-7b", "4xA100", "native", 254.02),
    ("llama-2-7b", "8xA100", "native", 328.43),
    ("llama-2-7b", "A100", "int8", 155.58),
    ("llama-2-70b", "2xA100", "native", 21.32),
    ("llama-2-70b", "4xA100", "native", 38.01),
    ("llama-2-70b", "8xA100", "native", 62.50),
    ("llama-2-70b", "A100", "int8", 19.13),
)
"""Tokens a second of one text, as the README of gpt-fast has them: A100 of 80 GB held to 330 W."""


@pytest.fixture(autouse=True)
def machine_that_was_never_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))


_SAME: dict[str, Any] = dict(critic=DECODERS["llama-2-7b"], reward=DECODERS["llama-2-7b"], answer=1024)


def ask(model: str = "70b", gpus: str = "8xH100", **changes: Any) -> ServingAsk:
    return ServingAsk(**dict(decoder=find_decoder(model), fleet=parse_fleet(gpus), context=4096) | changes)  # type: ignore[arg-type]


def work(model: str = "7b", gpus: str = "8xH100", **changes: Any) -> DecoderWork:
    return DecoderWork(
        **dict(decoder=find_decoder(model), fleet=parse_fleet(gpus), context=4096, batch=1) | changes
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-30b", 32_528_943_616),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_parameters_are_those_of_the_published_checkpoints(name: str, published: int) -> None:
    assert DECODERS[name].parameters == published


def test_of_mixtral_a_token_uses_13_of_47_billion_and_many_tokens_read_nearly_all() -> None:
    mixtral = DECODERS["mixtral-8x7b"]
    assert mixtral.active_parameters == pytest.approx(12.9e9, rel=0.005)
    assert mixtral.read_parameters(1) == mixtral.multiplied_parameters
    assert mixtral.read_parameters(64) == pytest.approx(mixtral.parameters, rel=0.01)


@pytest.mark.parametrize(
    ("name", "kib"), [("7b", 512), ("13b", 800), ("70b", 320), ("8b", 128), ("405b", 504)]
)
def test_keys_and_values_of_a_token_are_the_known_size(name: str, kib: float) -> None:
    assert find_decoder(name).kv_bytes(1) == kib * 1024


def test_70b_at_32k_holds_ten_gibibytes() -> None:
    assert explain_language("kv", ask(context=32768)).value == 10


def test_training_llama_3_405b_took_the_published_operations() -> None:
    """3.8e25 for 15.6 trillion tokens, by six a parameter and token."""
    assert 6 * DECODERS["llama-3.1-405b"].parameters * 15.6e12 == pytest.approx(3.8e25, rel=0.01)
    products, attention = decoder_flops(DECODERS["llama-3.1-405b"], 8192, 8192)
    assert 3 * (products + attention) / 8192 == pytest.approx(6 * 405e9, rel=0.05)


def test_a_block_keeps_what_megatron_counts_but_for_two_dropout_masks() -> None:
    """34 bytes a token and width, of which two masks of a byte, with attention fused."""
    gpt = DECODERS["gpt-3-175b"]
    assert block_activations(gpt, 1, "none") == 32 * gpt.width
    assert (
        block_activations(gpt, 1, "none")
        > block_activations(gpt, 1, "selective")
        > block_activations(gpt, 1, "full")
    )


def planned(model: str, gpus: str, weights: str) -> float:
    return 1e3 / decode_time(ask(model, gpus, weights=weights, context=100)).total


def test_decode_rates_are_near_those_that_were_measured() -> None:
    ratios = [planned(*point[:3]) / point[3] for point in GPT_FAST]
    assert statistics.median(abs(ratio - 1) for ratio in ratios) <= 0.26
    assert all(0.5 < ratio < 1.75 for ratio in ratios)


def test_the_documents_table_is_what_is_planned() -> None:
    text = (Path(__file__).parents[3] / "docs" / "planning.md").read_text()
    for model, gpus, weights, measured in GPT_FAST:
        found = planned(model, gpus, weights)
        assert (
            f"| {model} | {gpus} | {weights} | {measured:.4g} | {found:.4g} | {found / measured - 1:+.0%} |"
            in text
        )


def test_llama_3_405b_is_planned_quicker_than_it_ran_by_half_at_most() -> None:
    """About 400 TFLOP/s a card were published, of 8192 tokens a text and groups of eight cards, with
    pipelines besides."""
    one = replace(work("405b", "8192xH100", context=8192, recompute="none"), tp=8)
    reached = 3 * sum(decoder_flops(one.decoder, one.tokens, one.context)) / step_ms(one) / 1e9
    assert 400 <= reached <= 600


def test_reading_is_bound_by_compute_and_writing_by_bandwidth_until_many_write_at_once() -> None:
    assert prefill_time(ask()).bound == "compute"
    assert decode_time(ask()).bound == "bandwidth"
    assert decode_time(ask(batch=4096, context=64)).bound == "compute"


@given(st.integers(1, 512), st.integers(1, 1 << 17))
def test_a_larger_batch_never_writes_fewer_tokens_a_second_and_never_each_text_quicker(
    batch: int, context: int
) -> None:
    one, two = (decode_time(ask(batch=each, context=context)).total for each in (batch, 2 * batch))
    assert one <= two <= 2 * one


def test_what_fits_fills_memory_and_one_more_does_not() -> None:
    asked = ask("8b", "H100", context=8192)
    count = texts_that_fit(asked)
    held = asked.decoder.parameters * 2 + count * asked.decoder.kv_bytes(8192)
    assert held < asked.fleet.device.memory_bytes < held + 6 * asked.decoder.kv_bytes(8192)
    assert texts_that_fit(ask("405b", "8xH100")) == 0


@given(st.floats(0, 1), st.integers(0, 32), st.floats(0, 1))
def test_speculation_brings_at_most_all_proposals_and_one_and_nothing_if_all_are_refused(
    accepted: float, ahead: int, cost: float
) -> None:
    assert 1 <= tokens_a_call(accepted, ahead) <= ahead + 1
    assert speculative_gain(0.0, ahead, cost) <= 1
    assert speculative_gain(1.0, ahead, 0.0) == ahead + 1


def test_speculation_is_the_published_formula() -> None:
    a = 0.8
    k = 5
    c = 0.1
    assert speculative_gain(a, k, c) == pytest.approx((1 - a ** (k + 1)) / ((1 - a) * (k * c + 1)))


def summed(found: Explanation) -> float:
    return float(eval(found.filled, {"__builtins__": {}, "min": min, "max": max}))


@pytest.mark.parametrize("model", ["7b", "405b", "mixtral-8x7b", "gpt-3-175b"])
@pytest.mark.parametrize("what", list(LANGUAGE))
def test_the_filled_formula_gives_the_number(what: str, model: str) -> None:
    found = explain_language(what, ask(model, batch=4, weights="int8"))
    assert summed(found) == pytest.approx(found.value, rel=1e-4)


@pytest.mark.parametrize(("size", "most"), [(1e3, "latency"), (14e9, "bytes")])
def test_a_sum_and_speculation_fill_their_formulas_too(size: float, most: str) -> None:
    found = explain_sum(size, 64, NETWORK)
    assert summed(found) == pytest.approx(found.value)
    assert f"mostly {most}" in found.why
    drafted = explain_speculation(ask(), find_decoder("8b"), 0.8, 4)
    assert summed(drafted) == pytest.approx(drafted.value, rel=1e-4)


def test_zero_3_gathers_twice_and_scatters_once_where_plain_copies_sum_gradients() -> None:
    plain, sharded = (
        data_talk(replace(work("70b", "64xH100"), sharding=replace(work().sharding, zero=z))) for z in (1, 3)
    )
    assert sharded == pytest.approx(1.5 * plain, rel=0.02)


def test_layouts_use_every_device_and_groups_hold_less_of_the_weights() -> None:
    found = {each.name: each for each in decoder_layouts(work("70b", "64xH100"))}
    assert set(found) == {
        "ZeRO-3 over 64",
        "tp2, ZeRO-3 over 32",
        "tp4, ZeRO-3 over 16",
        "tp8, ZeRO-3 over 8",
    }
    whole = found["ZeRO-3 over 64"].groups[0]
    split = found["tp8, ZeRO-3 over 8"].groups[0]
    assert whole.devices == split.devices == 64
    assert split.parts["weights"] < whole.parts["weights"]
    assert split.parts["optimizer"] == pytest.approx(whole.parts["optimizer"])


def test_four_models_take_less_in_turns_and_every_device_is_placed_once() -> None:
    asked = RewardAsk(work=work(context=2048, batch=8), **_SAME)
    found = {each.name: each for each in reward_placements(asked)}
    assert found["in turns"].groups[0].total < found["together"].groups[0].total
    assert found["in turns"].step_ms > found["together"].step_ms
    assert {sum(group.devices for group in each.groups) for each in found.values()} == {8}


def test_offload_holds_less_on_a_device_and_takes_longer() -> None:
    plain, moved = (work("13b", sharding=Sharding(zero=2, offload=offload)) for offload in (False, True))
    assert step_ms(moved) > step_ms(plain)
    for placed in (decoder_layouts, lambda one: reward_placements(RewardAsk(work=one, **_SAME))):
        (held,), (less,) = (
            next(each.groups for each in placed(one) if len(each.groups) == 1) for one in (plain, moved)
        )
        assert less.total < held.total
        assert less.host_bytes > held.host_bytes


@pytest.mark.parametrize(("gpus", "fits"), [("H100", False), ("4xH100", True)])
def test_what_is_said_of_weights_that_do_not_fit_says_so(gpus: str, fits: bool) -> None:
    for name in ("weights", "prefill", "decode", "texts"):
        result = CliRunner().invoke(app, ["plan", "explain", name, "--model", "70b", "--gpus", gpus])
        assert result.exit_code == 0
        assert ("do not fit" not in result.stdout.replace("\n", " ")) == fits
    kv = CliRunner().invoke(app, ["plan", "explain", "kv", "--model", "70b", "--gpus", gpus])
    assert "do not fit" not in kv.stdout


def test_names_and_shapes_are_told_from_video_models() -> None:
    shapes = "layers=32,width=4096,heads=32,kv_heads=8,ffn=14336,experts=8,active=2"
    assert find_decoder(shapes) == replace(DECODERS["mixtral-8x7b"], name="custom")
    assert is_decoder(shapes)
    assert not is_decoder("wan2.1-t2v-14b")
    assert not is_decoder("layers=30,width=1536,heads=12,ffn=8960")
    with pytest.raises(ConfigError, match="at most experts"):
        DecoderConfig(layers=1, width=8, heads=1, kv_heads=1, ffn=8, active=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "70b"], "is a language model: plan explain"),
        (["explain", "joy", "--model", "7b"], "known: parameters"),
        (["explain", "kv", "--model", "kv_heads=2,layers=x"], "a custom language model is layers=N"),
        (["explain", "kv", "--model", "kv_heads=2,layers=2"], "also needs width"),
        (["explain", "kv", "--model", "layers=2,width=64,heads=2,ffn=64,experts=8"], "also needs kv_heads"),
        (["explain", "kv"], "of language models, --model 70b, others"),
        (["explain", "kv", "--model", "7b", "--context", "0"], "--context and --batch must be"),
        (["explain", "decode", "--model", "7b", "--gpus", "64xH100"], "name 1 to 32 devices"),
        (["explain", "decode", "--model", "7b", "--weights", "q1"], "--weights must be"),
        (["explain", "speculation", "--model", "70b", "--accepted", "2"], "--accepted must be 0 to 1"),
        (["explain", "speculation", "--model", "70b", "--draft", "none"], "not a known language model"),
        (["explain", "all-reduce", "--bytes", "-1"], "--bytes above 0"),
        (["explain", "adam", "--state", "fp4"], "--state must be mixed"),
        (["train", "--student", "7b", "--lora", "8"], "not planned for language models"),
        (["train", "--student", "7b", "--reward", "7b", "--answer", "4096"], "--answer must be 1 to 4095"),
        (["train", "--student", "7b", "--context", "0"], "a context of 1"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["plan", *words])
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_people_ask_of_a_language_model_and_get_its_numbers() -> None:
    def value(*words: str) -> float:
        return float(
            json.loads(CliRunner().invoke(app, ["plan", "explain", *words, "--json"]).stdout)["value"]
        )

    assert value("kv", "--model", "70b", "--context", "32768") == 10
    assert value("adam", "--model", "70b", "--shards", "64") == pytest.approx(70.5537 * 16 / 64, rel=1e-4)
    assert value("adam", "--parameters", "30e9", "--state", "fp32", "--zero", "0") == 480
    link = ["--bytes", "4e9", "--shards", "8", "--latency", "0", "--bandwidth", "100"]
    assert value("all-reduce", *link) == pytest.approx(2 * 7 / 8 * 40)
    shown = CliRunner().invoke(app, ["plan", "train", "--student", "70b", "--gpus", "64xH100"])
    record = json.loads(
        CliRunner().invoke(app, ["plan", "train", "--student", "70b", "--gpus", "64xH100", "--json"]).stdout
    )
    assert shown.exit_code == 0
    assert "TFLOP/s a device" in shown.stdout
    assert all(each["fits"] for each in record)
    assert CliRunner().invoke(app, ["plan", "train", "--student", "405b", "--gpus", "8xH100"]).exit_code == 1
    tuned = CliRunner().invoke(
        app, ["plan", "train", "--student", "7b", "--reward", "7b", "--batch", "8", "--context", "2048"]
    )
    assert "to write 1024 tokens" in " ".join(tuned.stdout.split())
