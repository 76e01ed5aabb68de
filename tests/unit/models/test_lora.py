"""A LoRA merges to the same weights in every spelling, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from millstream.core.errors import WeightsError
from millstream.models.wan.layouts import Layout, translation
from tests.unit.checkpoints import (
    Weights,
    assert_same,
    in_layout,
    merge_lora,
    prefixed,
    random_module,
    save,
    weights_of,
)

pytestmark = pytest.mark.slow

RANK = 4
LAYERS = [
    f"blocks.{i}.{name}" for i in range(2) for name in ("self_attn.q", "cross_attn.o", "ffn.up", "ffn.down")
]
Factors = dict[str, tuple[Tensor, Tensor]]


def factors() -> Factors:
    """Down and up of each layer, by our names."""
    generator = torch.Generator().manual_seed(3)
    shapes = {layer: random_module("dit").get_submodule(layer).weight.shape for layer in LAYERS}
    return {
        layer: (torch.randn(RANK, inner, generator=generator), torch.randn(outer, RANK, generator=generator))
        for layer, (outer, inner) in shapes.items()
    }


def merged_by_hand(scale: float, dtype: torch.dtype = torch.float32) -> Weights:
    weights = weights_of(random_module("dit", dtype=dtype))
    for layer, (down, up) in factors().items():
        name = f"{layer}.weight"
        weights[name] = (weights[name].float() + (up @ down) * scale).to(dtype)
    return weights


def spelled(layout: Layout | None, prefix: str = "", down: str = "lora_A", up: str = "lora_B") -> Weights:
    table = translation("dit", layout, [f"{layer}.weight" for layer in LAYERS]) if layout else {}
    tensors: Weights = {}
    for layer, pair in factors().items():
        theirs = prefix + table.get(f"{layer}.weight", f"{layer}.weight").removesuffix(".weight")
        tensors[f"{theirs}.{down}.weight"], tensors[f"{theirs}.{up}.weight"] = pair
    return tensors


def kohya(alpha: float) -> Weights:
    tensors: Weights = {}
    for name, tensor in spelled("original", down="lora_down", up="lora_up").items():
        layer, _, rest = name.partition(".lora_")
        flat = "lora_unet_" + layer.replace(".", "_")
        tensors[f"{flat}.lora_{rest}"] = tensor
        tensors[f"{flat}.alpha"] = torch.tensor(alpha)
    return tensors


SPELLINGS: dict[str, Callable[[], Weights]] = {
    "ours": lambda: spelled(None),
    "comfy": lambda: spelled("original", "diffusion_model."),
    "peft": lambda: spelled("original", "base_model.model.", "lora_A.default", "lora_B.default"),
    "peft of a wrapper": lambda: spelled("original", "base_model.model.model._fsdp_wrapped_module."),
    "diffusers": lambda: spelled("diffusers", "transformer."),
    "kohya": lambda: kohya(alpha=RANK),
}


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_merges_to_what_is_computed_by_hand(
    spelling: str, scale: float, tmp_path: Path
) -> None:
    module = random_module("dit")
    touched = merge_lora(module, save(SPELLINGS[spelling](), tmp_path / "lora.safetensors"), scale=scale)
    assert touched == len(LAYERS)
    assert_same(weights_of(module), merged_by_hand(scale))


@pytest.mark.parametrize("wrapper", ["generator_lora", None])
def test_a_torch_lora_merges_bare_or_wrapped(wrapper: str | None, tmp_path: Path) -> None:
    module = random_module("dit")
    path = tmp_path / "lora.pt"
    lora = spelled("original", "base_model.model.")
    torch.save({wrapper: lora, "critic_lora": lora, "step": 5} if wrapper else lora, path)
    assert merge_lora(module, path) == len(LAYERS)
    assert_same(weights_of(module), merged_by_hand(1.0))


def test_alpha_scales_what_is_merged(tmp_path: Path) -> None:
    module = random_module("dit")
    merge_lora(module, save(kohya(alpha=RANK / 2), tmp_path / "lora.safetensors"))
    assert_same(weights_of(module), merged_by_hand(0.5))


def test_alpha_may_be_a_bare_number_in_a_torch_file(tmp_path: Path) -> None:
    module = random_module("dit")
    path = tmp_path / "lora.pt"
    torch.save(
        {
            name: tensor.item() if name.endswith(".alpha") else tensor
            for name, tensor in kohya(RANK / 2).items()
        },
        path,
    )
    merge_lora(module, path)
    assert_same(weights_of(module), merged_by_hand(0.5))


def test_half_precision_weights_are_summed_in_float32(tmp_path: Path) -> None:
    module = random_module("dit", dtype=torch.bfloat16)
    merge_lora(module, save(SPELLINGS["comfy"](), tmp_path / "lora.safetensors"))
    assert_same(weights_of(module), merged_by_hand(1.0, torch.bfloat16))


def test_the_patch_embedding_can_be_a_target(tmp_path: Path) -> None:
    module = random_module("dit")
    before = module.patch_in.weight.clone()
    down = torch.randn(RANK, 4, 1, 2, 2)
    up = torch.randn(48, RANK, 1, 1, 1)
    name = "diffusion_model.patch_embedding"
    merge_lora(
        module, save({f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}, tmp_path / "x.safetensors")
    )
    assert torch.equal(module.patch_in.weight, before + (up.flatten(1) @ down.flatten(1)).view_as(before))


def without(tensors: Weights, ending: str) -> Weights:
    gone = next(name for name in reversed(tensors) if name.endswith(ending))
    return {name: tensor for name, tensor in tensors.items() if name != gone}


A = "blocks.1.ffn.2.lora_A.weight"
B = "blocks.1.ffn.2.lora_B.weight"
BROKEN: dict[str, tuple[Callable[[Weights], Weights], str]] = {
    "unknown layer": (
        lambda t: {**t, "blocks.7.ffn.0.lora_A.weight": torch.ones(4, 48)},
        r"blocks\.7\.ffn\.0.*does not have",
    ),
    "no up": (lambda t: without(t, "lora_B.weight"), r"blocks\.1\.ffn\.2\.lora_A\.weight has no up factor"),
    "no down": (
        lambda t: without(t, "lora_A.weight"),
        r"blocks\.1\.ffn\.2\.lora_B\.weight has no down factor",
    ),
    "wrong down": (lambda t: {**t, A: torch.ones(4, 95)}, r"lora_A\.weight has shape \[4, 95\].*\[48, 96\]"),
    "wrong rank": (lambda t: {**t, B: torch.ones(48, 3)}, r"lora_B\.weight has shape \[48, 3\]"),
    "diff": (
        lambda t: {**t, "blocks.0.ffn.0.diff": torch.ones(1)},
        r"blocks\.0\.ffn\.0\.diff .*difference, which is not supp",
    ),
    "diff_b": (lambda t: {**t, "blocks.0.ffn.0.diff_b": torch.ones(1)}, "diff_b is a full weight difference"),
    "dora": (lambda t: {**t, "blocks.0.ffn.0.dora_scale": torch.ones(1)}, "dora_scale is no LoRA factor"),
    "twice": (lambda t: {**t, A.replace("_A.", "_A.default."): torch.ones(4, 96)}, "is there twice"),
    "alpha": (lambda t: {**t, "blocks.0.ffn.0.alpha": torch.ones(2)}, "alpha is not one number"),
    "a model": (
        lambda t: in_layout(weights_of(random_module("dit")), "dit", "original"),
        r"is no LoRA factor.*and \d+ more",
    ),
}


@pytest.mark.parametrize("breakage", BROKEN)
def test_a_lora_that_does_not_fit_is_named_and_merges_nothing(breakage: str, tmp_path: Path) -> None:
    damage, message = BROKEN[breakage]
    module = random_module("dit")
    path = save(prefixed(damage(spelled("original")), "diffusion_model."), tmp_path / "lora.safetensors")
    with pytest.raises(WeightsError, match=message) as raised:
        merge_lora(module, path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert_same(weights_of(module), weights_of(random_module("dit")))
