"""The Brook that comes with the package: whole, calm when nothing is said, and really trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from millstream.core.controls import SetPrompt
from millstream.core.errors import WeightsError
from millstream.core.examples import EXAMPLES, near
from millstream.core.presets import MODELS
from millstream.core.speed import Speed
from millstream.engine.engine import Engine
from millstream.models import registry
from millstream.models.brook.files import BUNDLED, PATH
from millstream.train.data.captions import mentioned
from millstream.train.data.vocabulary import CLASSES
from millstream.train.evaluate.adherence import judge_prompts
from millstream.train.evaluate.classifier import FRAMES, JUDGE, load_classifier
from millstream.train.evaluate.metrics import impression

pytestmark = pytest.mark.slow

CALM = MODELS["brook"].default_prompt
SEEN_AT_ONCE = ("setting", "time", "weather", "thing", "colour")
"""Two seconds are few to tell a slow drift from a bob."""


@pytest.fixture(scope="module")
def brook() -> Engine:
    return Engine("brook", weights=BUNDLED, device="cpu")


@pytest.fixture(scope="module")
def as_served() -> Engine:
    """As `serve` and `generate` show it on a CPU: by its thin decoder."""
    return Engine("brook", weights=BUNDLED, device="cpu", speed=Speed(thin_decoder=True))


def test_the_file_is_small_enough_to_come_with_the_package() -> None:
    assert PATH.stat().st_size <= 20 * 2**20


def test_a_damaged_file_is_refused_with_the_fingerprint_it_should_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(PATH.read_bytes())
    content[-1] ^= 1
    damaged = tmp_path / "brook.safetensors"
    damaged.write_bytes(content)
    monkeypatch.setattr(registry, "PATH", damaged)
    with pytest.raises(WeightsError, match=f"damaged.*expected {registry.FINGERPRINT}.*install"):
        Engine("brook", weights=BUNDLED, device="cpu")


@pytest.mark.parametrize("prompt", [CALM, *EXAMPLES])
def test_brook_knows_every_word_of_the_prompts_that_come_with_it(brook: Engine, prompt: str) -> None:
    assert brook.model.text.embedder.read(prompt) == (prompt, (), ())


@pytest.mark.parametrize("prompt", [*EXAMPLES, "an orange balloon by day", "fish"])
def test_brook_knows_every_word_of_what_is_suggested_and_each_is_another(brook: Engine, prompt: str) -> None:
    for turn in range(12):
        suggested = near(prompt, turn=turn)
        assert len({prompt, *suggested}) == 5
        assert not any(brook.model.text.embedder.read(each).unknown for each in suggested)
    assert any("an red" not in each and "red balloon" in each for each in near("an orange balloon"))


@pytest.mark.parametrize("prompt", EXAMPLES)
def test_brook_shows_what_the_examples_say(as_served: Engine, prompt: str) -> None:
    with as_served.session(prompt) as session:
        frames = np.concatenate([chunk.frames for chunk in session.stream(3)])[-FRAMES:]
    judge = load_classifier(JUDGE, torch.device("cpu"))
    seen = impression(judge, torch.from_numpy(frames).permute(0, 3, 1, 2)[None]).named
    said = {name: CLASSES[name][ids[0]] for name, ids in mentioned(prompt).items() if name in SEEN_AT_ONCE}
    assert {"setting", "thing", "colour"} <= said.keys()
    assert {name: CLASSES[name][int(seen[name])] for name in said} == said


@pytest.mark.parametrize("nothing", ["", "  \n"])
def test_an_empty_prompt_streams_something_calm(brook: Engine, nothing: str) -> None:
    with (
        brook.session(nothing, height=64, width=64) as silent,
        brook.session(CALM, height=64, width=64) as calm,
    ):
        said = next(calm.stream(1))
        found = next(silent.stream(1))
        assert found.digest == said.digest
        silent.control(SetPrompt(prompt=nothing))
        assert next(silent.stream(1)).prompts[0].text == CALM


class AsRendered:
    """A VAE that gives back what it was given: nothing is asked here that needs reconstructions."""

    def encode(self, pixels_BTCYX: Tensor) -> tuple[Tensor, None]:
        return pixels_BTCYX, None

    decode = encode


def adherence(engine: Engine, count: int, **stream: Any) -> dict[str, float]:
    """Relative to renders, by attribute."""
    judge = load_classifier(JUDGE, torch.device("cpu"))
    config = engine.stream_config(**stream)
    reference = replace(engine.model, vae=AsRendered())
    judged = judge_prompts(
        engine.model, judge, config=config, held_out=False, count=count, seconds=[2.0], reference=reference
    )
    return judged.moments[0].adherence


def test_the_bundled_model_follows_its_prompts(brook: Engine) -> None:
    trained = adherence(brook, 2)
    assert all(trained[name] >= 0.85 for name in ("setting", "time", "weather")), trained
    assert sum(trained.values()) / len(trained) >= 0.8, trained


def test_noise_follows_no_prompt() -> None:
    noise = adherence(
        Engine("brook", weights="random", device="cpu"), 2, steps=(1000.0,), height=64, width=64
    )
    assert sum(noise.values()) / len(noise) < 0.6, noise
