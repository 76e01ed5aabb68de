"""Brook's own parts: a VAE that streams, a text encoder that says what it does not know, one file for all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from millstream.core.config import BrookTextConfig, BrookVAEConfig, pixel_frames
from millstream.core.controls import WeightedPrompt
from millstream.core.errors import WeightsError
from millstream.core.files import file_digest
from millstream.core.presets import find_model
from millstream.engine.engine import Engine
from millstream.models.brook.bundle import build, load_bundle, save_bundle
from millstream.models.brook.text import BrookText, WordTokenizer, padded
from millstream.models.brook.vae import BrookVAE
from millstream.models.weights.fill import fill_random
from tests.unit.models_for_tests import shaken

WORDS = ("a", "boat", "red", "sea")
SPEC = find_model("brook")
CPU = torch.device("cpu")
SPLITS = [(3,), (1, 1, 1), (1, 2), (2, 1), (3, 3, 1)]


def small_vae() -> BrookVAE:
    torch.manual_seed(0)
    vae = shaken(BrookVAE(BrookVAEConfig(channels=4, widths=(24, 16, 12), blocks=(2, 1, 1))))
    vae.latent_std.abs_()
    return vae


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_any_split_gives_the_same_frames_and_latents(split: tuple[int, ...]) -> None:
    vae = small_vae()
    pixels = torch.rand(1, pixel_frames(0, sum(split)), 3, 32, 48) * 2 - 1
    latents, _ = vae.encode(pixels)
    frames, _ = vae.decode(latents)
    assert frames.shape == pixels.shape
    sizes = [pixel_frames(0 if i == 0 else 1, count) for i, count in enumerate(split)]
    state = ()
    parts = []
    for part in pixels.split(sizes, dim=1):
        found, state = vae.encode(part, state)
        parts.append(found)
    assert torch.allclose(torch.cat(parts, dim=1), latents, atol=1e-5)
    state = ()
    parts = []
    for part in latents.split(split, dim=1):
        found, state = vae.decode(part, state)
        parts.append(found)
    assert torch.allclose(torch.cat(parts, dim=1), frames, atol=1e-5)


def test_the_vae_never_sees_the_future() -> None:
    vae = small_vae()
    latents = torch.randn(1, 4, 4, 4, 4)
    changed = latents.clone()
    changed[:, 3] += 1
    frames = vae.decode(latents)[0]
    other = vae.decode(changed)[0]
    assert torch.equal(frames[:, :9], other[:, :9])
    assert not torch.equal(frames[:, 9:], other[:, 9:])


def test_words_are_lower_cased_and_unknown_ones_named_once() -> None:
    tokenizer = WordTokenizer(WORDS)
    assert tokenizer.ids("A red, red boat!", 9) == [1, 3, 3, 2]
    assert tokenizer.read("A zeppelin over the sea, a zeppelin").unknown == ("zeppelin", "over", "the")
    assert padded(tokenizer, ["sea", ""], 3).tolist() == [[4, 0, 0], [0, 0, 0]]


def test_padding_and_other_prompts_do_not_matter_to_a_prompt() -> None:
    torch.manual_seed(0)
    text = shaken(BrookText(BrookTextConfig(vocabulary=4, tokens=6, width=16, layers=2, heads=2)))
    tokenizer = WordTokenizer(WORDS)
    together = text(padded(tokenizer, ["a red boat", "", "sea"], 6))
    alone = text(padded(tokenizer, ["a red boat"], 3))
    assert torch.allclose(together[0, :3], alone[0], atol=1e-5)
    assert (together[0, 3:] == 0).all()
    assert (together[1] == 0).all()


def bundle(folder: Path) -> Path:
    parts = build(SPEC, len(WORDS))
    for module in parts:
        fill_random(module, seed=1, device=CPU, dtype=torch.float32)
    save_bundle(folder / "brook.safetensors", parts, WORDS, {"seed": 1}, torch.float16)
    return folder / "brook.safetensors"


def test_one_file_holds_the_model_and_streams(tmp_path: Path) -> None:
    path = bundle(tmp_path)
    assert path.stat().st_size <= 20 * 2**20
    engine = Engine("brook", weights=str(path), device="cpu", dtype="float32")
    (chunk,) = engine.session("a red boat", height=64, width=64).stream(1)
    assert chunk.frames.shape == (9, 64, 64, 3)
    assert engine.model.text.embedder.read("a blue boat").unknown == ("blue",)
    assert (engine.model.text((WeightedPrompt("nothing known"),)) == 0).all()


def test_a_damaged_file_is_refused_with_the_fingerprint_it_should_have(tmp_path: Path) -> None:
    path = bundle(tmp_path)
    expected = file_digest(path)
    load_bundle(path, SPEC, device=CPU, dtype=torch.float32, fingerprint=expected)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(WeightsError, match=expected):
        load_bundle(path, SPEC, device=CPU, dtype=torch.float32, fingerprint=expected)


@pytest.mark.parametrize("content", [b"", b"junk" * 100])
def test_what_is_no_bundle_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "brook.safetensors"
    path.write_bytes(content)
    with pytest.raises(
        WeightsError, match=r"cannot be read .* name a file that millstream train wrote, or bundled"
    ):
        load_bundle(path, SPEC, device=CPU, dtype=torch.float32)
    with pytest.raises(WeightsError, match="nowhere is not there; check the path, or name bundled"):
        load_bundle(tmp_path / "nowhere", SPEC, device=CPU, dtype=torch.float32)
