"""Twenty questions of somebody new, each one command: tested by what the answer says, and by how soon it is
there."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.commands.plan.use import settings_of
from millstream.core.errors import ConfigError

BIG = ("--model", "wan2.1-t2v-14b")
OWN = """
name = "MyCard"
memory_gib = 48
bf16_tflops = 400
bandwidth_tb_s = 2.0
architecture = "ada"
dollars_per_hour = 0.9
"""


@pytest.fixture(autouse=True)
def machine_that_was_never_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(autouse=True, scope="module")
def everything_is_imported() -> None:
    CliRunner().invoke(app, ["plan", "--gpus", "H200", "--window", "9"])


def asked(*words: str) -> tuple[bool, str]:
    """Whether it holds, and what was said, within a second of work."""
    began = time.process_time()
    result = CliRunner().invoke(app, ["plan", *words])
    assert time.process_time() - began < 1.0, "an answer takes less than a second"
    assert result.exit_code in (0, 1), result.output
    return result.exit_code == 0, result.stdout


def recorded(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(asked(*words, "--json")[1])
    return found


def refused(*words: str) -> str:
    result = CliRunner().invoke(app, ["plan", *words])
    assert result.exit_code == 2, result.output
    return result.stderr


def test_01_does_my_4090_run_the_small_model_in_real_time() -> None:
    holds, said = asked("--gpus", "4090", "--size", "480p", "--fps", "16")
    assert not holds
    assert "No, for lack of memory and frame rate: one stream reaches" in said
    assert "needs 31.2 GiB and has 22.3" in said
    assert "all of these together (--precision fp8 --window 6 --vae tiny)" in said


def test_02_does_it_fit_a_24_gb_card_at_all_with_the_text_encoder_elsewhere() -> None:
    small = ("--gpus", "4090", "--size", "480p", "--fps", "4")
    assert not asked(*small)[0]
    assert asked(*small, "--text", "cpu")[0]
    assert asked(*small, "--text", "visiting", "--window", "9")[0]
    assert recorded(*small, "--text", "cpu")["plans"][0]["time_ms"]["first_frame"] > 2000, (
        "a processor takes its time"
    )


def test_03_which_card_is_cheapest_for_this_promise() -> None:
    cards = recorded("--gpus", "any", "--size", "480p")["cards"]
    holding = [card for card in cards if card["holds"]]
    assert len(cards) > 20
    assert [card["dollars_per_hour"] for card in holding] == sorted(
        card["dollars_per_hour"] for card in holding
    )
    said = asked("--gpus", "any", "--size", "480p")[1]
    assert "Cheapest: 1x" in said
    assert "…" not in said, "a pipe gets every figure"


def test_04_how_many_h100_for_four_viewers() -> None:
    one, four = (
        recorded("--gpus", "anyxH100", "--size", "480p", "--sessions", count)["plans"][0]
        for count in ("1", "4")
    )
    assert one["devices"] == 1
    assert (
        four["replicas"] * four["sessions_per_replica"]
        >= 4
        > (four["replicas"] - 1) * four["sessions_per_replica"]
    )
    assert (
        f"Yes, with {four['devices']}xH100"
        in asked("--gpus", "anyxH100", "--size", "480p", "--sessions", "4")[1]
    )


def test_05_which_of_the_cards_that_i_can_get_at_these_prices() -> None:
    dear = recorded("--gpus", "H100@9,H200@1", "--window", "9")["cards"]
    cheap = recorded("--gpus", "H100@1,H200@9", "--window", "9")["cards"]
    assert [card["gpu"] for card in dear] == ["H200", "H100"]
    assert [card["gpu"] for card in cheap] == ["H100", "H200"]


def test_06_what_does_my_own_price_come_to() -> None:
    plan = recorded("--gpus", "H200", "--window", "9", "--price", "2")["plans"][0]
    assert plan["dollars_per_hour"] == plan["dollars_per_stream_hour"] == 2
    assert "1 x $2 for 1" in asked("--gpus", "H200", "--window", "9", "--price", "2")[1]


def test_07_a_card_that_nobody_has_heard_of(tmp_path: Path) -> None:
    (tmp_path / "card.toml").write_text(OWN)
    words = ("--gpu-file", str(tmp_path / "card.toml"), "--size", "320x576", "--window", "9")
    assert "on 1xMyCard" in asked(*words)[1]
    assert recorded(*words, "--gpus", "2xMyCard")["ask"]["gpus"] == "2xMyCard"
    assert {card["gpu"] for card in recorded(*words, "--gpus", "MyCard,L40S")["cards"]} == {"MyCard", "L40S"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("name = 'x'", "does not say memory_gib"),
        (OWN + "colour = 3", "has no use for colour"),
        (OWN.replace("48", "'much'"), "memory_gib must be a number above 0"),
        (OWN.replace('"ada"', '"atari"'), "architecture 'atari' is unknown"),
        ("[", "is not a card"),
    ],
)
def test_a_card_that_is_not_one_is_refused_in_a_line(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "card.toml").write_text(content)
    error = refused("--gpu-file", str(tmp_path / "card.toml"))
    assert said in error
    assert len(error.strip().splitlines()) == 1
    assert "cannot be read" in refused("--gpu-file", str(tmp_path / "none.toml"))


def test_08_what_would_make_it_hold() -> None:
    found = recorded(*BIG, "--gpus", "H100", "--size", "480p", "--fps", "16")["remedies"]
    prices = [each["dollars_per_hour"] for each in found]
    assert prices == sorted(prices)
    assert all(each["plan"]["holds"] for each in found)
    assert any("--steps" in each["change"] for each in found)
    assert any("another card" in each["change"] for each in found)


def test_09_what_does_bound_mean() -> None:
    said = asked(*BIG, "--gpus", "H100", "--size", "480p", "--fps", "30")[1]
    assert "over 100% it misses" in said
    assert "of the time a chunk plays for" in said
    assert "$/h each: dollars an hour for each stream" in said


def test_10_how_sure_is_that() -> None:
    low, high = recorded("--gpus", "MI300X", "--window", "9")["plans"][0]["fps_range"]
    narrow, wide = recorded("--gpus", "H200", "--window", "9")["plans"][0]["fps_range"]
    assert high / low > wide / narrow
    assert "±35%" in asked("--gpus", "MI300X", "--window", "9")[1]
    assert "rates measured, ±5%," in asked("--gpus", "H200", "--window", "9")[1]
    others = asked("--gpus", "H200", "--window", "9", "--software", "reference")[1]
    assert "rates measured, ±12%," in others, "another program is known from a point or two"


def test_10_how_sure_is_that_on_several_cards_that_nobody_measured() -> None:
    ask = (*BIG, "--size", "480p", "--gpus", "4xH200", "--topology", "front+sp2")
    assert "±5% on one, ±20% on several, which were never measured here" in asked(*ask)[1]
    assert "by what is known of several H200 together, never measured here" in asked(*ask)[1]
    (plan,) = recorded(*ask)["plans"]
    low, high = plan["fps_range"]
    assert plan["band"] == 0.2
    assert high / low == pytest.approx(1.2 / 0.8)


def test_11_an_answer_within_its_band_says_perhaps() -> None:
    fps = recorded("--gpus", "A100", "--window", "9")["plans"][0]["fps"]
    holds, said = asked("--gpus", "A100", "--window", "9", "--fps", f"{0.97 * fps:.2f}")
    assert holds
    assert "Perhaps, with 1xA100" in said
    assert "Yes, with 1xA100" in asked("--gpus", "A100", "--window", "9", "--fps", f"{0.7 * fps:.2f}")[1]


def test_12_how_fast_is_it_with_a_tiny_vae() -> None:
    full, tiny = (
        recorded("--gpus", "A100", "--window", "9", "--vae", vae)["plans"][0] for vae in ("full", "tiny")
    )
    assert tiny["time_ms"]["decode"] < full["time_ms"]["decode"] / 10
    assert tiny["fps"] > full["fps"]


def test_13_what_if_i_keep_gguf_weights() -> None:
    words = (
        *BIG,
        "--gpus",
        "RTX4090",
        "--size",
        "320x576",
        "--text",
        "cpu",
        "--software",
        "reference",
        "--fps",
        "1",
    )
    assert not asked(*words)[0], "28 GB do not fit"
    assert asked(*words, "--weights", "q6_k")[0]
    eight, four = (
        recorded(*words, "--weights", name)["plans"][0]["memory_gib"]["all"] for name in ("q8_0", "q4_k")
    )
    assert four["DiT weights"] / eight["DiT weights"] == pytest.approx(4.5 / 8.5, rel=0.01)


def test_14_what_does_streamdiffusion_reach_there() -> None:
    words = (
        *BIG,
        "--gpus",
        "4xH100",
        "--topology",
        "pp4",
        "--schedule",
        "streamdiffusion-v2",
        "--size",
        "480p",
    )
    run = ("--software", "reference", "--stream-batch", "--no-commit", "--video-in")
    four, one = (recorded(*words, *run, *steps)["plans"][0]["fps"] for steps in ((), ("--steps", "1")))
    assert four == pytest.approx(20.05, rel=0.2)
    assert one == pytest.approx(39.24, rel=0.2)


def test_15_how_long_is_a_clip_of_a_model_that_does_not_stream() -> None:
    words = ("--clip", "81", "--guidance", "--steps", "50", "--software", "wan", "--size", "720p")
    found = recorded(*BIG, "--gpus", "A100", *words)["plans"][0]
    assert found["time_ms"]["period"] / 1e3 == pytest.approx(3342.6, rel=0.05)
    assert "a clip of 81 frames at once, 50 steps" in asked(*BIG, "--gpus", "A100", *words)[1]
    assert "4 times a number and one more" in refused("--clip", "80")


def test_16_how_fast_would_another_program_be() -> None:
    words = (*BIG, "--gpus", "H100", "--clip", "81", "--guidance", "--steps", "40", "--size", "480p")
    by = {
        name: recorded(*words, "--software", name)["plans"][0]["fps"]
        for name in ("diffusers", "fastvideo", "lightx2v")
    }
    assert by["diffusers"] < by["fastvideo"] < by["lightx2v"]


def test_17_what_does_fewer_steps_buy() -> None:
    four, two = (
        recorded("--gpus", "H100", "--window", "9", "--steps", steps)["plans"][0]["fps"]
        for steps in ("4", "2")
    )
    assert 1.3 < two / four < 2
    assert recorded("--steps", "1000,750")["ask"]["steps"] == [1000, 750], "noise levels as before"


@pytest.mark.parametrize(
    "name", ["a100-40", "v100", "3090", "RTX 5090-laptop", "rtx4090-laptop", "L4", "L40S", "B200", "mi300x"]
)
def test_18_does_it_know_my_card(name: str) -> None:
    holds, said = asked("--gpus", name, "--size", "240p", "--fps", "1", "--text", "cpu", "--window", "6")
    assert holds
    assert "Yes, with 1x" in said


def test_19_can_i_serve_what_was_planned(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(recorded("--gpus", "H200", "--window", "9")))
    assert settings_of(tmp_path / "plan.json").stream.window == 9
    (tmp_path / "plan.json").write_text(
        json.dumps(recorded("--gpus", "H200", "--window", "9", "--vae", "tiny"))
    )
    with pytest.raises(ConfigError, match="counts on vae tiny, which is planned for comparison only"):
        settings_of(tmp_path / "plan.json")


def test_20_what_if_i_mistype() -> None:
    assert "--vae must be full or tiny" in refused("--vae", "small")
    assert "--text must be one of device, visiting, cpu" in refused("--text", "moon")
    assert "--weights must be native, int8" in refused("--weights", "q9")
    assert "leave --precision fp8 out" in refused("--weights", "int8", "--precision", "fp8")
    assert "leave it out for any" in refused("--gpus", "any", "--price", "3")
    assert "as in H200@2.10" in refused("--gpus", "H100@cheap")
    assert "or 480p" in refused("--size", "large")
    assert "--max and --html are of one kind of card" in refused("--gpus", "any", "--max", "size")
