"""Files that do not fit, are damaged or hold code say so in one line and leave the module as it was."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.core.errors import WeightsError
from millstream.core.presets import MODELS
from millstream.models.wan.layouts import Part
from millstream.models.weights.fill import fill, fill_random
from millstream.models.weights.survey import WeightsMismatch
from tests.unit.checkpoints import filled, in_layout, meta_module, random_module, save, weights_of


def refused(part: Part, *sources: Path) -> str:
    """The message, which is one line and leaves the module as it was."""
    module = meta_module(part)
    with pytest.raises(WeightsError) as raised:
        fill(module, part, sources, device="cpu", dtype=torch.float32)
    assert all(parameter.is_meta for parameter in module.parameters())
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_wrong_shape_names_the_key_and_both_shapes(tmp_path: Path) -> None:
    weights = in_layout(weights_of(random_module("dit")), "dit", "diffusers")
    weights["blocks.1.ffn.net.2.weight"] = torch.zeros(48, 95)
    said = refused("dit", save(weights, tmp_path / "x.safetensors"))
    assert "1 reshaped: blocks.1.ffn.net.2.weight (expected [48, 96], found [48, 95])" in said


def test_missing_and_unexpected_keys_are_counted_and_all_kept(tmp_path: Path) -> None:
    weights = weights_of(random_module("dit"))
    gone = [name for name in weights if name.startswith("blocks.1.self_attn.")]
    for name in gone:
        del weights[name]
    path = save({**weights, "blocks.0.img.weight": torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(WeightsMismatch) as raised:
        filled("dit", path)
    assert f"{len(gone)} missing: {gone[0]}, {gone[1]}, {gone[2]} and {len(gone) - 3} more" in str(
        raised.value
    )
    assert "1 unexpected: blocks.0.img.weight" in str(raised.value)
    assert raised.value.survey.missing == tuple(gone)


def test_another_model_and_another_part_are_told_apart(tmp_path: Path) -> None:
    mini = meta_module("dit", MODELS["wan-mini"])
    fill_random(mini, seed=0, device="cpu", dtype=torch.bfloat16)
    assert "its shapes are those of wan-mini" in refused(
        "dit", save(weights_of(mini), tmp_path / "mini.safetensors")
    )
    vae = save(weights_of(random_module("vae")), tmp_path / "vae.safetensors")
    assert "holds a vae, not a dit" in refused("dit", vae)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    weights = weights_of(random_module("dit"))
    first = save(weights, tmp_path / "a.safetensors")
    second = save(weights, tmp_path / "b.safetensors")
    assert "lies in both" in refused("dit", first, second)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.99])
def test_a_truncated_file_is_refused(suffix: str, kept: float, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    weights = weights_of(random_module("dit"))
    save(weights, path) if suffix == ".safetensors" else torch.save(weights, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    assert f"{path} is damaged" in refused("dit", path)


@settings(max_examples=60)
@given(content=st.binary(max_size=300), suffix=st.sampled_from([".safetensors", ".pt", ".bin"]))
def test_garbage_of_any_kind_is_refused_in_one_line(
    content: bytes, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("garbage") / f"model{suffix}"
    path.write_bytes(content)
    assert str(path) in refused("dit", path)


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_with_code_is_refused_and_not_run(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    target = tmp_path / "ran"
    torch.save(
        {"generator": {"x": torch.ones(1)}, "bomb": Bomb(target)}, path, _use_new_zipfile_serialization=zipped
    )
    assert "holds code besides tensors, which is never run" in refused("dit", path)
    path.write_bytes(pickle.dumps(Bomb(target)))
    refused("dit", path)
    assert not target.exists()


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"step": 3, "names": ["a"]}, tmp_path / "x.pt")
    assert "holds no tensors" in refused("dit", tmp_path / "x.pt")


def test_one_name_stored_under_two_prefixes_is_refused(tmp_path: Path) -> None:
    path = save({"model.x": torch.ones(1), "x": torch.zeros(1)}, tmp_path / "x.safetensors")
    assert "holds x twice" in refused("dit", path)
