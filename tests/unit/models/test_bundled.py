"""The Brook that comes with the package: whole, calm when nothing is said, and really trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from millstream.core.conditions import Picture
from millstream.core.controls import SetImage, SetPrompt
from millstream.core.errors import WeightsError
from millstream.core.examples import EXAMPLES, near
from millstream.core.presets import MODELS
from millstream.core.speed import Speed
from millstream.engine.engine import Engine
from millstream.models import registry
from millstream.models.brook.files import BUNDLED, PATH
from millstream.ops.pixels import from_bytes, to_bytes
from millstream.train.data.captions import canonical_captions, mentioned
from millstream.train.data.render import render
from millstream.train.data.scene import sample_scenes
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


def test_a_picture_of_its_world_is_shown_first_and_kept(brook: Engine) -> None:
    """The first frame is the VAE's own reconstruction, and those after it are nearer to the picture than what
    its words alone give."""
    scene = sample_scenes(1, seed=77)
    shown = to_bytes(render(scene, start=0, frames=1, size=(256, 256)))[0].permute(0, 2, 3, 1)
    pixels = from_bytes(shown.permute(0, 3, 1, 2), brook.dtype)[None]
    with torch.inference_mode():
        latents, _ = brook.model.vae.encode(pixels)
        restored, _ = brook.model.vae.decode(latents)
    (caption,) = canonical_captions(scene)
    with brook.session(caption) as session:
        picture = Picture.of(shown.numpy().tobytes(), height=256, width=256)
        session.control(SetImage(picture=picture))
        (chunk,) = session.stream(1)
    with brook.session(caption) as other:
        (unlike,) = other.stream(1)
    assert len(chunk.frames) == 13
    own = psnr(to_bytes(restored)[0, 0].permute(1, 2, 0).numpy(), shown[0].numpy())
    assert own > 30
    assert abs(psnr(chunk.frames[0], shown[0].numpy()) - own) <= 0.5
    assert psnr(chunk.frames[4], shown[0].numpy()) > psnr(unlike.frames[4], shown[0].numpy()) + 2


def psnr(found: np.ndarray, expected: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.square(found.astype(float) - expected).mean()))


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
