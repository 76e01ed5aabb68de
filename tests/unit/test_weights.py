"""Checkpoints of every layout fill a module exactly, or say in one line why not."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from millstream.core.config import DiTConfig
from millstream.core.errors import WeightsError
from millstream.core.presets import MODELS
from millstream.models.dit import CausalDiT
from millstream.models.wan.layouts import Layout, Part
from millstream.models.weights.files import find_shards, open_shard
from millstream.models.weights.fill import fill, fill_random
from millstream.models.weights.fingerprint import fingerprint
from millstream.models.weights.locate import locate
from millstream.models.weights.parts import expected_shapes, identify, infer_dit, match_preset
from millstream.models.weights.survey import WeightsMismatch
from tests.unit.checkpoints import (
    PARTS,
    TINY,
    assert_same,
    diffusers_folder,
    in_layout,
    meta_module,
    original_folder,
    prefixed,
    random_module,
    save,
    save_shards,
    weights_of,
)


def filled(part: Part, *sources: Path, dtype: torch.dtype = torch.float32, prefer_ema: bool = True) -> nn.Module:
    module = meta_module(part)
    fill(module, part, sources, device="cpu", dtype=dtype, prefer_ema=prefer_ema)
    return module


def refused(part: Part, *sources: Path) -> str:
    """The message, which is one line and leaves the module as it was."""
    module = meta_module(part)
    with pytest.raises(WeightsError) as raised:
        fill(module, part, sources, device="cpu", dtype=torch.float32)
    assert all(parameter.is_meta for parameter in module.parameters())
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("part", PARTS)
def test_weights_travel_through_every_layout_bit_for_bit(part: Part, tmp_path: Path) -> None:
    expected = weights_of(random_module(part))
    original = save(in_layout(expected, part, "original"), tmp_path / "original.safetensors")
    ours = weights_of(filled(part, original))
    assert_same(ours, expected)
    diffusers = save(in_layout(ours, part, "diffusers"), tmp_path / "diffusers.safetensors")
    again = weights_of(filled(part, diffusers))
    assert_same(again, expected)
    assert_same(weights_of(filled(part, save(again, tmp_path / "ours.safetensors"))), expected)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_a_checkpoint_is_recognised_by_its_names(part: Part, layout: Layout) -> None:
    names = in_layout(weights_of(random_module(part)), part, layout)
    assert identify(names) == (part, layout)


@pytest.mark.parametrize("part", ["dit", "vae"])
def test_our_own_names_are_recognised(part: Part) -> None:
    assert identify(weights_of(random_module(part))) == (part, "millstream")


def wrap(kind: str, dit: dict[str, torch.Tensor]) -> object:
    other = {name: tensor + 1 for name, tensor in dit.items()}
    return {
        "bare": dit,
        "generator": {"generator": prefixed(dit, "model."), "critic": other, "step": 600},
        "generator_ema": {"generator": other, "generator_ema": prefixed(dit, "model.")},
        "empty generator_ema": {"generator": dit, "generator_ema": None},
        "fsdp": {"generator": prefixed(dit, "model._fsdp_wrapped_module.")},
        "state_dict": {"state_dict": prefixed(dit, "module."), "epoch": 3},
        "model": {"model": dit},
        "nested": {"generator": {"model": prefixed(dit, "diffusion_model.")}},
    }[kind]


KINDS = ["bare", "generator", "generator_ema", "empty generator_ema", "fsdp", "state_dict", "model", "nested"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_torch_file_loads_however_it_is_wrapped(kind: str, tmp_path: Path) -> None:
    expected = weights_of(random_module("dit"))
    path = tmp_path / "model.pt"
    torch.save(wrap(kind, in_layout(expected, "dit", "original")), path)
    assert_same(weights_of(filled("dit", path)), expected)


def test_the_plain_generator_is_read_when_the_average_is_not_wanted(tmp_path: Path) -> None:
    plain, average = (in_layout(weights_of(random_module("dit", seed)), "dit", "original") for seed in (1, 2))
    path = tmp_path / "both.pt"
    torch.save({"generator": plain, "generator_ema": average}, path)
    assert_same(weights_of(filled("dit", path, prefer_ema=False)), weights_of(random_module("dit", 1)))
    assert_same(weights_of(filled("dit", path)), weights_of(random_module("dit", 2)))


def test_an_archive_of_the_old_torch_format_loads(tmp_path: Path) -> None:
    expected = weights_of(random_module("dit"))
    path = tmp_path / "old.pt"
    torch.save(in_layout(expected, "dit", "original"), path, _use_new_zipfile_serialization=False)
    assert_same(weights_of(filled("dit", path)), expected)


@pytest.mark.parametrize("prefix", ["model.", "model.diffusion_model.", "diffusion_model.", ""])
def test_one_safetensors_file_loads_with_any_known_prefix(prefix: str, tmp_path: Path) -> None:
    expected = weights_of(random_module("dit"))
    krea = save(prefixed(in_layout(expected, "dit", "original"), prefix), tmp_path / "krea.safetensors")
    assert_same(weights_of(filled("dit", krea)), expected)


def test_names_wrapped_in_the_middle_load(tmp_path: Path) -> None:
    expected = weights_of(random_module("dit"))
    original = in_layout(expected, "dit", "original")
    wrapped = {name.replace(".self_attn.", "._fsdp_wrapped_module.self_attn."): value for name, value in original.items()}
    assert_same(weights_of(filled("dit", save(wrapped, tmp_path / "x.safetensors"))), expected)


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
    assert locate([tmp_path, save(weights, tmp_path / "model.safetensors")]).dit == (tmp_path / "model.safetensors",)


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


def test_the_tied_embedding_loads_under_either_name_and_stays_tied(tmp_path: Path) -> None:
    expected = weights_of(random_module("text"))
    both = {**expected, "encoder.embed_tokens.weight": expected["shared.weight"].clone()}
    alias_only = {name: tensor for name, tensor in both.items() if name != "shared.weight"}
    for i, weights in enumerate((both, alias_only)):
        module = filled("text", save(weights, tmp_path / f"{i}.safetensors"))
        assert_same(weights_of(module), expected)
        assert module.encoder.embed_tokens.weight is module.shared.weight


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_filled_module_is_frozen_and_of_the_dtype_asked_for(dtype: torch.dtype, tmp_path: Path) -> None:
    module = filled("dit", save(weights_of(random_module("dit")), tmp_path / "x.safetensors"), dtype=dtype)
    assert not module.training
    assert all(p.dtype == dtype and not p.is_meta and not p.requires_grad for p in module.parameters())


def test_a_filled_module_does_not_lean_on_the_file(tmp_path: Path) -> None:
    path = save(weights_of(random_module("dit")), tmp_path / "x.safetensors")
    module = filled("dit", path)
    path.write_bytes(bytes(path.stat().st_size))
    assert_same(weights_of(module), weights_of(random_module("dit")))


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
    assert f"{len(gone)} missing: {gone[0]}, {gone[1]}, {gone[2]} and {len(gone) - 3} more" in str(raised.value)
    assert "1 unexpected: blocks.0.img.weight" in str(raised.value)
    assert raised.value.survey.missing == tuple(gone)


def test_another_model_and_another_part_are_told_apart(tmp_path: Path) -> None:
    mini = meta_module("dit", MODELS["wan-mini"])
    fill_random(mini, seed=0, device="cpu", dtype=torch.bfloat16)
    assert "its shapes are those of wan-mini" in refused("dit", save(weights_of(mini), tmp_path / "mini.safetensors"))
    vae = save(weights_of(random_module("vae")), tmp_path / "vae.safetensors")
    assert "holds a vae, not a dit" in refused("dit", vae)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    weights = weights_of(random_module("dit"))
    first, second = save(weights, tmp_path / "a.safetensors"), save(weights, tmp_path / "b.safetensors")
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


@settings(max_examples=60, deadline=None)
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
    path, target = tmp_path / "model.pt", tmp_path / "ran"
    torch.save({"generator": {"x": torch.ones(1)}, "bomb": Bomb(target)}, path, _use_new_zipfile_serialization=zipped)
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


def test_names_and_shapes_come_before_any_data(tmp_path: Path) -> None:
    path = save({"model.a": torch.ones(2, 3, dtype=torch.bfloat16)}, tmp_path / "x.safetensors")
    with open_shard(path) as shard:
        assert (shard.infos["a"].shape, shard.infos["a"].dtype, shard.infos["a"].num_bytes) == ((2, 3), torch.bfloat16, 12)
        assert torch.equal(shard.read("a"), torch.ones(2, 3, dtype=torch.bfloat16))


@pytest.mark.parametrize("name", sorted(name for name in MODELS if name.startswith("wan")))
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


def test_random_weights_depend_on_seed_and_name_only() -> None:
    first, again, other = random_module("dit", 1), random_module("dit", 1), random_module("dit", 2)
    assert_same(weights_of(first), weights_of(again))
    assert not torch.equal(first.blocks[0].ffn.up.weight, other.blocks[0].ffn.up.weight)
    assert not torch.equal(first.blocks[0].self_attn.q.weight, first.blocks[0].self_attn.k.weight)
    alone = nn.ModuleDict({"time_out": nn.Linear(48, 288)})
    fill_random(alone, seed=1, device="cpu", dtype=torch.float32)
    assert torch.equal(alone["time_out"].weight, first.time_out.weight)


@pytest.mark.parametrize("part", PARTS)
def test_random_weights_keep_the_scale_of_what_passes_through(part: Part) -> None:
    for name, tensor in weights_of(random_module(part)).items():
        if name.endswith("bias"):
            assert not tensor.any(), name
        elif "norm" in name:
            assert torch.equal(tensor, torch.ones_like(tensor)), name
        elif tensor.numel() > 500:
            fan_in = tensor.shape[-1] if "modulation" in name else tensor[0].numel()
            assert tensor.std().item() == pytest.approx(1 / math.sqrt(fan_in), rel=0.2), name


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_any_flipped_bit_or_swap_changes_the_fingerprint(data: st.DataObject, dtype: torch.dtype) -> None:
    module = random_module("dit", dtype=dtype)
    before = fingerprint({"dit": module})
    assert fingerprint({"dit": random_module("dit", dtype=dtype)}) == before
    name, parameter = data.draw(st.sampled_from(list(module.named_parameters())))
    raw = parameter.data.view(-1).view(torch.uint8)
    i, j = (data.draw(st.integers(0, raw.numel() - 1)) for _ in range(2))
    if data.draw(st.booleans()):
        raw[i] ^= 1 << data.draw(st.integers(0, 7))
        changed = True
    else:
        changed = bool(raw[i] != raw[j])
        raw[[i, j]] = raw[[j, i]]
    assert (fingerprint({"dit": module}) != before) == changed, name


@pytest.mark.parametrize("shape", [(4, 6), (24,)])
def test_names_shapes_and_dtypes_are_in_the_fingerprint(shape: tuple[int, ...]) -> None:
    zeros = [
        {"a": nn.ParameterDict({"x": torch.zeros(shape)})},
        {"b": nn.ParameterDict({"x": torch.zeros(shape)})},
        {"a": nn.ParameterDict({"y": torch.zeros(shape)})},
        {"a": nn.ParameterDict({"x": torch.zeros(2, 12)})},
        {"a": nn.ParameterDict({"x": torch.zeros(shape, dtype=torch.bfloat16)})},
        {"a": nn.ParameterDict({"x": torch.zeros(shape, dtype=torch.float16)})},
    ]
    assert len({fingerprint(modules) for modules in zeros}) == len(zeros)


def test_a_swap_across_pieces_changes_the_fingerprint() -> None:
    module = nn.ParameterDict({"x": torch.zeros((1 << 20) + 10, dtype=torch.bfloat16)})
    module["x"].data[0] = 1
    before = fingerprint({"a": module})
    module["x"].data[[0, 1 << 20]] = module["x"].data[[1 << 20, 0]]
    assert fingerprint({"a": module}) != before


MEASURE = """
import sys
from pathlib import Path
import torch
from millstream.core.config import DiTConfig
from millstream.models.dit import CausalDiT
from millstream.models.weights.fill import fill, fill_random

def status(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))

def small():
    with torch.device("meta"):
        return CausalDiT(DiTConfig(layers=1, width=16, heads=2, ffn=16, text_width=8))

fill_random(small(), seed=0, device="cpu", dtype=torch.float32)  # what torch sets up on first use is not the model's
with torch.device("meta"):
    dit = CausalDiT(DiTConfig(layers=4, width=768, heads=6, ffn=4096, text_width=64))
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
fill(dit, "dit", [Path(sys.argv[1])], device="cpu", dtype=torch.float32)
model = sum(p.numel() * p.element_size() for p in dit.parameters())
print(status("VmHWM") - before - model, model)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_filling_holds_the_model_and_little_more_than_one_shard(tmp_path: Path) -> None:
    with torch.device("meta"):
        dit = CausalDiT(DiTConfig(layers=4, width=768, heads=6, ffn=4096, text_width=64))
    fill_random(dit, seed=0, device="cpu", dtype=torch.float32)
    shards = save_shards(in_layout(weights_of(dit), "dit", "diffusers"), tmp_path, "diffusion_pytorch_model", 4)
    largest = max(shard.stat().st_size for shard in shards)
    assert len(shards) == 4
    assert largest > 40e6
    run = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True)
    beyond, model = map(int, run.stdout.split())
    assert model > 3 * largest
    assert beyond < 1.2 * largest, f"held {beyond / 1e6:.0f} MB beyond the model, largest shard {largest / 1e6:.0f} MB"
