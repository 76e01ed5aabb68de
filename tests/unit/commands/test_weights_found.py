"""Parts of a model are found in published folders and loose files, and known by their names and shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from millstream.core.config import NO_CONDITIONS
from millstream.core.errors import WeightsError
from millstream.core.presets import MODELS
from millstream.models.wan.layouts import Layout, Part
from millstream.models.weights.files import find_shards, open_shard
from millstream.models.weights.locate import locate
from millstream.models.weights.parts import expected_shapes, identify, infer_dit, match_preset
from tests.unit.checkpoints import (
    PARTS,
    TINY,
    assert_same,
    diffusers_folder,
    filled,
    in_layout,
    meta_module,
    original_folder,
    random_module,
    save,
    save_shards,
    weights_of,
)


@pytest.mark.parametrize("build", [original_folder, diffusers_folder])
def test_every_part_of_a_published_folder_is_found_and_loads(build: object, tmp_path: Path) -> None:
    files = locate([build(tmp_path / "model")])  # type: ignore[operator]
    assert list(files.parts) == ["dit", "vae", "text"]
    assert files.tokenizer is not None
    assert (files.tokenizer / "tokenizer.json").exists()
    for part, paths in files.parts.items():
        assert_same(weights_of(filled(part, *paths)), weights_of(random_module(part)))


def test_a_later_path_replaces_the_part_it_holds(tmp_path: Path) -> None:
    folder = original_folder(tmp_path / "wan")
    tuned = tmp_path / "tuned.pt"
    torch.save({"generator": in_layout(weights_of(random_module("dit", 5)), "dit", "original")}, tuned)
    files = locate([folder, tuned])
    assert files.dit == (tuned,)
    assert files.vae == (folder / "Wan2.1_VAE.pth",)


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="nowhere does not exist"):
        locate([tmp_path / "nowhere"])


def test_a_folder_with_two_of_a_part_is_refused(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        save(weights_of(random_module("dit")), tmp_path / name)
    with pytest.raises(WeightsError, match=r"two of dit, a\.safetensors and b\.safetensors"):
        locate([tmp_path])


def test_a_pickled_twin_of_a_safetensors_file_is_passed_over(tmp_path: Path) -> None:
    weights = weights_of(random_module("dit"))
    torch.save(weights, tmp_path / "model.bin")
    assert locate([tmp_path, save(weights, tmp_path / "model.safetensors")]).dit == (
        tmp_path / "model.safetensors",
    )


def test_a_folder_of_something_else_and_a_lora_are_no_models(tmp_path: Path) -> None:
    other = save({"decoder.1.weight": torch.ones(2)}, tmp_path / "other/taew2_1.safetensors")
    with pytest.raises(WeightsError, match="holds no part of a model"):
        locate([other.parent])
    with pytest.raises(WeightsError, match=r"taew2_1.*first names are decoder\.1\.weight"):
        locate([other])
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(WeightsError, match=r"model\.gguf is no checkpoint by its name"):
        locate([gguf])
    with pytest.raises(WeightsError, match="is a LoRA, not a model"):
        locate([save({"blocks.0.ffn.0.lora_A.weight": torch.ones(2)}, tmp_path / "lora.safetensors")])


def test_a_shard_that_the_index_names_but_is_gone_is_named(tmp_path: Path) -> None:
    shards = save_shards(weights_of(random_module("dit")), tmp_path, "model", 2)
    listed = ", ".join(f'"{i}": "{shard.name}"' for i, shard in enumerate(shards))
    (tmp_path / "model.safetensors.index.json").write_text(f'{{"weight_map": {{{listed}}}}}')
    assert find_shards(tmp_path) == shards
    assert locate([tmp_path]).dit == tuple(shards)
    shards[1].unlink()
    with pytest.raises(WeightsError, match=f"not there: {shards[1].name}"):
        find_shards(tmp_path)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_a_checkpoint_is_recognised_by_its_names(part: Part, layout: Layout) -> None:
    names = in_layout(weights_of(random_module(part)), part, layout)
    assert identify(names) == (part, layout)


@pytest.mark.parametrize("part", ["dit", "vae"])
def test_our_own_names_are_recognised(part: Part) -> None:
    assert identify(weights_of(random_module(part))) == (part, "millstream")


@pytest.mark.parametrize(
    "name",
    sorted(
        name for name, spec in MODELS.items() if name.startswith("wan") and spec.conditions == NO_CONDITIONS
    ),
)
@pytest.mark.parametrize("layout", ["original", "diffusers", None])
def test_shapes_tell_the_preset(name: str, layout: Layout | None) -> None:
    shapes = expected_shapes("dit", MODELS[name])
    found = match_preset(in_layout(shapes, "dit", layout) if layout else shapes)  # type: ignore[arg-type]
    assert found is MODELS[name]


def test_unknown_shapes_match_no_preset_but_are_described() -> None:
    shapes = expected_shapes("dit", TINY) | {"blocks.0.ffn.up.weight": (100, 48)}
    assert match_preset(shapes) is None
    assert str(infer_dit(shapes)) == "2 layers, width 48, ffn 100, 4 latent channels"


@pytest.mark.parametrize("part", PARTS)
def test_expected_shapes_are_those_of_the_module(part: Part) -> None:
    module = {name: tuple(tensor.shape) for name, tensor in weights_of(meta_module(part)).items()}
    assert expected_shapes(part, TINY) == module


def test_names_and_shapes_come_before_any_data(tmp_path: Path) -> None:
    path = save({"model.a": torch.ones(2, 3, dtype=torch.bfloat16)}, tmp_path / "x.safetensors")
    with open_shard(path) as shard:
        assert (shard.infos["a"].shape, shard.infos["a"].dtype, shard.infos["a"].num_bytes) == (
            (2, 3),
            torch.bfloat16,
            12,
        )
        assert torch.equal(shard.read("a"), torch.ones(2, 3, dtype=torch.bfloat16))
