"""From published files to pixels: every layout streams the same bits, on its own and after conversion."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from millstream.core.errors import WeightsError
from millstream.engine.engine import Engine
from millstream.models.wan.text import UMT5Tokenizer
from millstream.models.weights.convert import convert
from tests.unit.checkpoints import diffusers_folder, in_layout, original_folder, random_module, weights_of
from tests.unit.commands.test_cli import millstream

FOLDERS = {"original": original_folder, "diffusers": diffusers_folder}


def digests(*weights: Path) -> list[str]:
    engine = Engine("wan-tiny", weights=[str(path) for path in weights], device="cpu", dtype="float32")
    return [chunk.digest for chunk in engine.session("a boat on the sea", height=16, width=32).stream(2)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("expected")
    return digests(original_folder(folder))


@pytest.mark.parametrize("layout", FOLDERS)
def test_a_published_folder_streams_as_it_is_and_converted(
    layout: str, tmp_path: Path, expected: list[str]
) -> None:
    source = FOLDERS[layout](tmp_path / "source")
    assert digests(source) == expected
    convert(source, tmp_path / "ours")
    assert digests(tmp_path / "ours") == expected


def test_a_distilled_dit_is_laid_over_the_base_model(tmp_path: Path, expected: list[str]) -> None:
    base = original_folder(tmp_path / "base")
    other = in_layout(weights_of(random_module("dit", seed=5)), "dit", "original")
    torch.save(
        {"generator_ema": {f"model.{name}": tensor for name, tensor in other.items()}},
        tmp_path / "student.pt",
    )
    over_base = digests(base, tmp_path / "student.pt")
    assert over_base != expected
    convert(base, tmp_path / "ours")
    convert(tmp_path / "student.pt", tmp_path / "ours")
    assert digests(tmp_path / "ours") == over_base


def test_the_command_line_finds_converted_weights_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path))
    assert (
        millstream("convert", original_folder(tmp_path / "source"), tmp_path / "models" / "wan-tiny")[0] == 0
    )
    arguments = [
        "--model",
        "wan-tiny",
        "--size",
        "32x48",
        "--chunks",
        1,
        "--quiet",
        "--out",
        tmp_path / "clip.mp4",
    ]
    assert millstream("generate", "the sea", *arguments)[0] == 0
    assert (tmp_path / "clip.mp4").stat().st_size > 0


def test_weights_of_another_model_are_named_with_both_shapes(tmp_path: Path) -> None:
    source = original_folder(tmp_path / "source")
    with pytest.raises(WeightsError, match=r"does not fit this dit.*expected .* found .*wan-tiny"):
        Engine("wan-mini", weights=str(source), device="cpu")


def test_words_are_tokens_and_spaces_do_not_matter(tmp_path: Path) -> None:
    original_folder(tmp_path)
    tokenizer = UMT5Tokenizer(tmp_path / "google/umt5-xxl")
    assert tokenizer.ids("  a boat\n on   the sea ", 8) == [3, 4, 5, 6, 7, 1]
    assert len(tokenizer.ids("sea " * 100, 8)) == 8


@pytest.mark.parametrize(
    ("text", "said"), [(None, "has no tokenizer.json"), ("{", "tokenizer.json: EOF while parsing")]
)
def test_a_folder_without_a_whole_tokenizer_is_refused(text: str | None, said: str, tmp_path: Path) -> None:
    if text:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(WeightsError, match=said):
        UMT5Tokenizer(tmp_path)
