"""Conversion keeps every bit, adds parts to what is there, and never leaves half a folder."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from millstream.core.errors import UnknownModel, WeightsError
from millstream.core.presets import MODELS
from millstream.engine.engine import Engine
from millstream.models.registry import load_model
from millstream.models.wan.layouts import Layout, Part
from millstream.models.weights import convert as convert_module
from millstream.models.weights.convert import convert
from millstream.models.weights.locate import locate
from millstream.models.weights.survey import WeightsMismatch
from tests.unit.checkpoints import (
    PARTS,
    assert_same,
    diffusers_folder,
    in_layout,
    merge_lora,
    original_folder,
    prefixed,
    random_module,
    save,
    weights_of,
)

pytestmark = pytest.mark.slow


def converted(folder: Path, part: Part) -> dict[str, torch.Tensor]:
    files = json.loads((folder / "config.json").read_text())["parts"][part]["files"]
    return {name: tensor for file in files for name, tensor in load_file(folder / file).items()}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def single(path: Path, seed: int = 0, part: Part = "dit", dtype: torch.dtype = torch.float32) -> Path:
    return save(in_layout(weights_of(random_module(part, seed, dtype)), part, "original"), path)


@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_a_published_folder_becomes_ours_bit_for_bit(layout: Layout, tmp_path: Path) -> None:
    source = (original_folder if layout == "original" else diffusers_folder)(tmp_path / "published")
    target = tmp_path / "ours"
    report = convert(source, target)
    assert report.model == "wan-tiny"
    assert report.tokenizer
    for part in PARTS:
        expected = weights_of(random_module(part))
        assert_same(converted(target, part), expected)
        found = report.parts[part]
        assert (found.layout, found.num_tensors) == (layout, len(expected))
        assert found.num_bytes == sum(tensor.nbytes for tensor in expected.values())
        assert (found.missing, found.unexpected, found.reshaped) == ((), (), ())
    manifest = json.loads((target / "config.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["model"]) == ("millstream", 1, "wan-tiny")
    assert manifest["parts"]["vae"] == {
        "files": ["vae-00001-of-00001.safetensors"],
        "source": "published",
        "layout": layout,
    }
    published = next(source.rglob("tokenizer.json"))
    assert (target / "tokenizer/tokenizer.json").read_bytes() == published.read_bytes()


@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_a_folder_of_wan_22s_shape_becomes_ours_and_streams(layout: Layout, tmp_path: Path) -> None:
    spec = MODELS["wan22-tiny"]
    source = (original_folder if layout == "original" else diffusers_folder)(tmp_path / "published", spec)
    target = tmp_path / "ours"
    assert convert(source, target).model == "wan22-tiny"
    for part in PARTS:
        assert_same(converted(target, part), weights_of(random_module(part, spec=spec)))
    engine = Engine("wan22-tiny", weights=[str(target)], device="cpu", dtype="float32")
    (chunk,) = engine.session("a boat on the sea").stream(1)
    assert chunk.frames.shape == (9, 64, 64, 3)


def test_a_vae_whose_statistics_are_not_known_is_loaded_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = MODELS["wan22-tiny"]
    folder = str(original_folder(tmp_path / "published", spec))
    for known, warnings in ((spec.vae, 0), (replace(spec.vae, mean=(), std=()), 1)):
        caplog.clear()
        load_model(replace(spec, vae=known), [folder], device=torch.device("cpu"), dtype=torch.float32)
        assert len([line for line in caplog.messages if "mean and std of wan22-tiny" in line]) == warnings


def test_a_converted_folder_is_located_and_converts_again(tmp_path: Path) -> None:
    first = tmp_path / "first"
    second = tmp_path / "second"
    convert(original_folder(tmp_path / "wan"), first)
    files = locate([first])
    assert files.dit == (first / "dit-00001-of-00001.safetensors",)
    assert files.tokenizer == first / "tokenizer"
    assert convert(first, second).parts["dit"].layout == "millstream"
    assert contents(second).keys() == contents(first).keys()
    for part in PARTS:
        assert_same(converted(second, part), converted(first, part))


def test_a_second_source_adds_its_parts(tmp_path: Path) -> None:
    target = tmp_path / "ours"
    convert(single(tmp_path / "dit.safetensors"), target)
    assert list(locate([target]).parts) == ["dit"]
    convert(single(tmp_path / "vae.safetensors", part="vae"), target)
    assert list(locate([target]).parts) == ["dit", "vae"]
    assert_same(converted(target, "dit"), weights_of(random_module("dit")))
    assert_same(converted(target, "vae"), weights_of(random_module("vae")))


def test_a_part_converted_again_replaces_the_first_and_its_shards(tmp_path: Path) -> None:
    target = tmp_path / "ours"
    convert(single(tmp_path / "a.safetensors"), target, shard_bytes=100_000)
    convert(single(tmp_path / "b.safetensors", seed=9), target)
    assert sorted(contents(target)) == ["config.json", "dit-00001-of-00001.safetensors"]
    assert_same(converted(target, "dit"), weights_of(random_module("dit", 9)))


def test_shards_stay_below_the_limit_and_keep_dtypes(tmp_path: Path) -> None:
    target = tmp_path / "ours"
    report = convert(single(tmp_path / "x.safetensors", dtype=torch.bfloat16), target, shard_bytes=50_000)
    files = report.parts["dit"].files
    assert files[0] == f"dit-00001-of-{len(files):05d}.safetensors"
    assert len(files) > 3
    for file in files:
        assert sum(tensor.nbytes for tensor in load_file(target / file).values()) <= 50_000
    assert_same(converted(target, "dit"), weights_of(random_module("dit", dtype=torch.bfloat16)))


def test_the_average_or_the_plain_generator_is_converted_as_asked(tmp_path: Path) -> None:
    plain, average = (in_layout(weights_of(random_module("dit", seed)), "dit", "original") for seed in (1, 2))
    source = tmp_path / "self_forcing.pt"
    torch.save({"generator": prefixed(plain, "model."), "generator_ema": prefixed(average, "model.")}, source)
    averaged = convert(source, tmp_path / "average")
    as_trained = convert(source, tmp_path / "plain", prefer_ema=False)
    assert "dit: of the two generators there, generator_ema; --no-ema takes generator" in averaged.lines()
    assert "dit: of the two generators there, generator; --ema takes generator_ema" in as_trained.lines()
    assert_same(converted(tmp_path / "average", "dit"), weights_of(random_module("dit", 2)))
    assert_same(converted(tmp_path / "plain", "dit"), weights_of(random_module("dit", 1)))


def test_a_file_with_one_generator_says_nothing_of_another(tmp_path: Path) -> None:
    dit = in_layout(weights_of(random_module("dit")), "dit", "original")
    torch.save({"generator_ema": prefixed(dit, "model."), "generator": {}}, tmp_path / "one.pt")
    report = convert(tmp_path / "one.pt", tmp_path / "ours", prefer_ema=False)
    assert not report.parts["dit"].chosen
    assert not any("generators" in line for line in report.lines())
    assert_same(converted(tmp_path / "ours", "dit"), weights_of(random_module("dit")))


def test_transposed_and_shared_tensors_are_written_as_they_read(tmp_path: Path) -> None:
    weights = weights_of(random_module("dit"))
    shared = torch.randn(48, 48)
    weights |= {"blocks.0.self_attn.q.weight": shared, "blocks.0.self_attn.k.weight": shared.T}
    torch.save(weights, tmp_path / "x.pt")
    convert(tmp_path / "x.pt", tmp_path / "ours")
    assert_same(converted(tmp_path / "ours", "dit"), weights)


def lora(path: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    layer = "diffusion_model.blocks.1.cross_attn.v"
    return save(
        {f"{layer}.lora_A.weight": torch.randn(2, 48), f"{layer}.lora_B.weight": torch.randn(48, 2)}, path
    )


def test_loras_are_merged_while_converting(tmp_path: Path) -> None:
    """As a LongLive base and its LoRA."""
    base = tmp_path / "longlive_base.pt"
    torch.save(
        {"generator": prefixed(in_layout(weights_of(random_module("dit")), "dit", "original"), "model.")},
        base,
    )
    first = lora(tmp_path / "1.safetensors", 1)
    second = lora(tmp_path / "2.safetensors", 2)
    convert(base, tmp_path / "ours", loras=[(first, 1.0), (second, 0.25)], shard_bytes=50_000)
    expected = random_module("dit")
    merge_lora(expected, first)
    merge_lora(expected, second, scale=0.25)
    assert_same(converted(tmp_path / "ours", "dit"), weights_of(expected))


def test_a_lora_without_a_dit_is_refused(tmp_path: Path) -> None:
    source = single(tmp_path / "vae.safetensors", part="vae")
    with pytest.raises(WeightsError, match="no DiT to merge a LoRA into"):
        convert(
            source, tmp_path / "ours", model="wan-tiny", loras=[(lora(tmp_path / "1.safetensors", 1), 1.0)]
        )
    assert not (tmp_path / "ours").exists()


def test_unexpected_tensors_are_left_out_and_named(tmp_path: Path) -> None:
    weights = {**in_layout(weights_of(random_module("dit")), "dit", "original"), "freqs": torch.ones(3)}
    report = convert(save(weights, tmp_path / "x.safetensors"), tmp_path / "ours")
    assert report.parts["dit"].unexpected == ("freqs",)
    assert report.lines() == [
        "wan-tiny: dit",
        f"dit: {len(weights) - 1} tensors, 0.00 GB, from the original layout",
        "dit: left out 1 unexpected: freqs",
    ]
    assert_same(converted(tmp_path / "ours", "dit"), weights_of(random_module("dit")))


def test_missing_and_reshaped_tensors_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    weights = in_layout(weights_of(random_module("dit")), "dit", "original")
    del weights["head.modulation"]
    weights["blocks.0.norm3.bias"] = torch.zeros(47)
    with pytest.raises(
        WeightsMismatch,
        match=r"1 missing: head\.modulation; 1 reshaped: blocks\.0\.norm3\.bias .*\[48\].*\[47\]",
    ):
        convert(save(weights, tmp_path / "x.safetensors"), tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_the_model_must_be_named_where_weights_do_not_tell(tmp_path: Path) -> None:
    source = single(tmp_path / "vae.safetensors", part="vae")
    with pytest.raises(WeightsError, match="name the model"):
        convert(source, tmp_path / "ours")
    with pytest.raises(UnknownModel, match="wan-tiny"):
        convert(source, tmp_path / "ours", model="wan-huge")
    assert convert(source, tmp_path / "ours", model="wan-tiny").model == "wan-tiny"


def test_a_dit_of_no_registered_model_is_described(tmp_path: Path) -> None:
    weights = weights_of(random_module("dit"))
    trimmed = {name: tensor for name, tensor in weights.items() if not name.startswith("blocks.1.")}
    with pytest.raises(WeightsError, match="no registered model: 1 layers, width 48, ffn 96"):
        convert(save(trimmed, tmp_path / "x.safetensors"), tmp_path / "ours")


def test_parts_of_different_models_do_not_mix(tmp_path: Path) -> None:
    target = tmp_path / "ours"
    convert(single(tmp_path / "dit.safetensors"), target)
    before = contents(target)
    with pytest.raises(WeightsError, match="already holds wan-tiny, this is wan-mini"):
        convert(single(tmp_path / "vae.safetensors", part="vae"), target, model="wan-mini")
    assert contents(target) == before


class Interrupting:
    """Writes shards until the one that a person interrupts."""

    def __init__(self, survives: int) -> None:
        self.left = survives
        self.write = convert_module.save_file

    def __call__(self, tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        self.write(tensors, path, metadata)
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("survives", [0, 1, 4])
@pytest.mark.parametrize("exists", [True, False])
def test_an_interrupted_conversion_leaves_the_target_as_it_was(
    survives: int, exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "deep/ours"
    if exists:
        convert(single(tmp_path / "old.safetensors", seed=7), target, shard_bytes=100_000)
    before = contents(target)
    monkeypatch.setattr(convert_module, "save_file", Interrupting(survives))
    with pytest.raises(KeyboardInterrupt):
        convert(original_folder(tmp_path / "wan"), target, shard_bytes=100_000)
    assert contents(target) == before
    assert target.exists() == exists


def test_what_a_killed_conversion_left_goes_with_the_next(tmp_path: Path) -> None:
    target = tmp_path / "ours"
    killed = target / ".millstream-0123456789abcdef.partial"
    killed.mkdir(parents=True)
    (killed / ".tmpAbCdEf").write_bytes(b"x" * 1000)
    convert(single(tmp_path / "old.safetensors", seed=7), target)
    assert not [path for path in target.iterdir() if path.name.startswith(".")]


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """A disk on which no file can grow past `num_bytes`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_one_clear_line_and_leaves_nothing(tmp_path: Path) -> None:
    source = original_folder(tmp_path / "wan")
    target = tmp_path / "ours"
    with largest_file(100_000), pytest.raises(WeightsError, match=r"cannot write to .*ours .*free space"):
        convert(source, target)
    assert not target.exists()


def test_a_target_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("mine")
    with pytest.raises(WeightsError, match="cannot write to"):
        convert(single(tmp_path / "x.safetensors"), tmp_path / "ours")
    assert (tmp_path / "ours").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "millstream", "version": 9, "model": "x", "parts": {}}', "convert the model again"),
        ('{"format": "millstream"', "convert the model again"),
        (
            '{"format": "millstream", "version": 1, "model": "x", "parts": '
            '{"dit": {"files": ["../secret.safetensors"], "source": "", "layout": "original"}}}',
            "not a file beside it",
        ),
    ],
)
def test_a_config_that_cannot_be_trusted_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "secret.safetensors").write_bytes(b"")
    folder = tmp_path / "ours"
    folder.mkdir()
    (folder / "config.json").write_text(text)
    with pytest.raises(WeightsError, match=message):
        locate([folder])


def test_a_folder_converts_into_itself(tmp_path: Path) -> None:
    folder = tmp_path / "ours"
    convert(original_folder(tmp_path / "wan"), folder, shard_bytes=100_000)
    merged = lora(tmp_path / "1.safetensors", 1)
    convert(folder, folder, loras=[(merged, 1.0)], shard_bytes=70_000)
    expected = random_module("dit")
    merge_lora(expected, merged)
    assert_same(converted(folder, "dit"), weights_of(expected))
    assert_same(converted(folder, "text"), weights_of(random_module("text")))
