"""Samples at checkpoints are what `serve` would stream with those weights, and training does not notice
them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from millstream.commands.train.streams import CHUNKS, sample_prompts
from millstream.commands.train.tune import run_tuning
from millstream.core.reading import PromptReading
from millstream.engine.engine import Engine
from millstream.models.wan.text import UMT5Embedder
from millstream.train.finetune.dataset import ClipSet
from millstream.video.reader import VideoReader
from millstream.video.writer import VideoWriter
from tests.unit.train.finetune.datasets import recipe, small_dataset

pytestmark = pytest.mark.slow  # it trains

RECIPE = """
model = "wan-tiny"
weights = ["random:3"]
data = "clips"
steps = 4
batch = 2
lr = 0.05
warm_up = 1
ema = 0.5
frames_per_chunk = 2
window = 4
checkpoint_every = 2
"""
SAMPLES = 'sample_prompts = ["a boat", "the sea"]\n'
LORA = "[lora]\nrank = 2\n"


@pytest.fixture(autouse=True)
def without_installed_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)


def tuned(folder: Path, name: str, text: str) -> Path:
    if not (folder / "clips").exists():
        small_dataset(folder / "clips")
    path = folder / f"{name}.toml"
    path.write_text(text)
    assert run_tuning(path, out=None, device="cpu", dry_run=False) is not None
    return path.with_suffix("")


def frames_of(path: Path) -> np.ndarray:
    with VideoReader(path) as reader:
        return np.stack(list(reader.frames()))


def test_the_last_sample_is_what_the_engine_streams_with_the_lora_that_was_left(tmp_path: Path) -> None:
    run = tuned(tmp_path, "run", RECIPE + SAMPLES + LORA)
    assert sorted(path.name for path in (run / "samples").iterdir()) == [
        "step-000000", "step-000002", "step-000004", "tuning-000000.png", "tuning-000002.png", "tuning-000004.png",
    ]  # fmt: skip
    engine = Engine(
        "wan-tiny", weights="random:3", device="cpu", loras=((str(run / "lora.safetensors"), 1.0),)
    )
    for number, prompt in enumerate(("a boat", "the sea")):
        config = engine.stream_config(seed=number, height=32, width=32, frames_per_chunk=2, window=4)
        expected = [chunk.frames for chunk in engine.session(prompt, config=config).stream(CHUNKS)]
        with VideoWriter(tmp_path / f"expected-{number}.mp4", fps=config.fps) as writer:
            writer.write(np.concatenate(expected))
        assert (run / f"samples/step-000004/{number}.mp4").read_bytes() == (
            tmp_path / f"expected-{number}.mp4"
        ).read_bytes()
    before, after = (frames_of(run / f"samples/step-00000{step}/0.mp4").astype(int) for step in (0, 4))
    assert np.abs(before - after).max() > 0, "and it is not what was streamed before"


def test_words_of_sample_prompts_that_the_model_reads_over_are_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        UMT5Embedder,
        "read",
        lambda self, text: PromptReading(text, tuple(word for word in text.split() if word == "boat")),
    )
    tuned(tmp_path, "run", RECIPE + SAMPLES)
    assert capsys.readouterr().err.count("sample_prompts: wan-tiny has no word for boat\n") == 1


def test_training_does_not_notice_that_it_is_watched(tmp_path: Path) -> None:
    watched = tuned(tmp_path, "watched", RECIPE + "samples = 1\n")
    alone = tuned(tmp_path, "alone", RECIPE)
    one, other = (load_file(next((run / "dit").glob("*.safetensors"))) for run in (watched, alone))
    assert one.keys() == other.keys()
    assert all(bool((one[name] == other[name]).all()) for name in one)
    assert (watched / "samples/step-000004/0.mp4").exists()
    assert not (alone / "samples").exists()


def test_prompts_are_the_recipes_or_the_clips_captions(tmp_path: Path) -> None:
    clips = ClipSet(small_dataset(tmp_path))
    assert sample_prompts(recipe(samples=2), clips) == ["clip 0", "clip 1"]
    assert sample_prompts(recipe(sample_prompts=("a", "b")), clips) == ["a", "b"]
    assert sample_prompts(recipe(samples=3, sample_prompts=("a", "b")), clips) == ["a", "b", "a"]
    assert sample_prompts(recipe(), clips) == []


class FakeWandb(SimpleNamespace):
    """As much of the module as is used."""

    def __init__(self) -> None:
        super().__init__(begun={}, logged=[], finished=False)

    def init(self, **given: Any) -> FakeWandb:
        self.begun = given
        return self

    def log(self, values: dict[str, Any], *, step: int) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished = True

    @staticmethod
    def Video(path: str, *, caption: str, format: str) -> tuple[str, str]:
        assert format == "mp4"
        return Path(path).name, caption


def test_a_project_of_wandb_gets_losses_and_clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = tuned(tmp_path, "run", RECIPE + SAMPLES + 'wandb = "rivers"\n' + LORA)
    assert (fake.begun["project"], fake.begun["name"], fake.begun["resume"]) == ("rivers", "run", "allow")
    assert fake.begun["config"]["lr"] == 0.05
    assert fake.finished
    curve = [json.loads(line) for line in (run / "curve.jsonl").read_text().splitlines()]
    told = [(step, values["flow"]) for step, values in fake.logged if "flow" in values]
    assert told == [(line["step"] + 1, line["flow"]) for line in curve]
    clips = [(step, values["samples"]) for step, values in fake.logged if "samples" in values]
    assert clips == [(step, [("0.mp4", "a boat"), ("1.mp4", "the sea")]) for step in (0, 2, 4)]
    assert [step for step, _ in fake.logged] == sorted(step for step, _ in fake.logged), (
        "it takes no step back"
    )


def test_without_wandb_a_run_says_so_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tuned(tmp_path, "run", RECIPE + 'wandb = "rivers"\n' + LORA)
    assert (run / "lora.safetensors").exists()
    assert "wandb is not installed" in " ".join(capsys.readouterr().err.split())
