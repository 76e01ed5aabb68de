"""Products in 8-bit floats: their formulas against float32, with the same numbers that a GPU would
multiply."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from millstream.core.errors import ConfigError
from millstream.models.adapters import LoRALinear, add_adapters
from millstream.models.dit import CausalDiT
from millstream.ops.float8_product import E5M2, float8_product, scaled
from millstream.ops.fp8 import E4M3
from millstream.train.parallel import float8
from millstream.train.parallel.float8 import Float8Linear, replace_products
from tests.soak.train_equality import batches
from tests.unit.models_for_tests import relative_error
from tests.unit.train.parallel.test_learner import CONFIG, learner


def gradients(product: object, x: Tensor, weight: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x.clone().requires_grad_()
    weight = weight.clone().requires_grad_()
    found = product(x, weight)  # type: ignore[operator]
    found.backward(wanted)
    assert x.grad is not None
    assert weight.grad is not None
    return found.detach(), x.grad, weight.grad


@pytest.mark.parametrize(("dtype", "bits"), [(E4M3, 3), (E5M2, 2)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_number_near_the_largest_is_rounded_in_its_last_bit(
    dtype: torch.dtype, bits: int, size: float
) -> None:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) * size
    found = scaled(x, dtype)
    near = x.abs() > x.abs().max() / 64
    error = (found.restored() - x).abs() / x.abs()
    assert error[near].max() <= 2.0 ** -(bits + 1) * 1.001
    assert found.restored().abs().max() == pytest.approx(float(x.abs().max()), rel=1e-6)


def test_a_tensor_of_zeros_stays_one() -> None:
    assert (scaled(torch.zeros(16, 16), E4M3).restored() == 0).all()


def whole_numbers(*shape: int, seed: int) -> Tensor:
    """That 8 bits hold exactly: up to 7, which scales by a power of two."""
    found = torch.randint(-7, 8, shape, generator=torch.Generator().manual_seed(seed)).float()
    found.flatten()[0] = 7
    return found


def test_the_formulas_are_those_of_a_linear_product() -> None:
    x = whole_numbers(3, 5, 32, seed=1)
    weight = whole_numbers(48, 32, seed=2)
    wanted = whole_numbers(3, 5, 48, seed=3)
    found = gradients(float8_product, x, weight, wanted)
    expected = gradients(nn.functional.linear, x, weight, wanted)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_rounding_costs_a_few_percent() -> None:
    generator = torch.Generator().manual_seed(4)
    x, weight, wanted = (torch.randn(shape, generator=generator) for shape in ((50, 64), (32, 64), (50, 32)))
    found = gradients(float8_product, x, weight, wanted)
    expected = gradients(nn.functional.linear, x, weight, wanted)
    for one, other, most in zip(found, expected, (0.04, 0.07, 0.07), strict=True):
        assert 0.01 < relative_error(one, other) < most


def test_a_frozen_weight_gets_no_gradient_and_keeps_no_input() -> None:
    x = torch.randn(16, 32, requires_grad=True)
    weight = torch.randn(16, 32)
    found = float8_product(x, weight)
    assert found.grad_fn is not None
    found.sum().backward()
    assert x.grad is not None
    assert weight.grad is None


def test_products_of_blocks_are_replaced_and_a_loras_thin_factors_are_not() -> None:
    dit = CausalDiT(CONFIG)
    add_adapters(dit, rank=16, alpha=16.0, parts=("self_attn",))
    names = {name for name, _ in dit.named_parameters()}
    replace_products(dit)
    assert {name for name, _ in dit.named_parameters()} == names
    layer = dit.blocks[0].self_attn.q
    assert isinstance(layer, LoRALinear)
    assert isinstance(layer.plain, Float8Linear)
    assert not isinstance(layer.lora_A, Float8Linear)
    assert isinstance(dit.blocks[0].ffn.up, Float8Linear)
    assert not isinstance(dit.time_out, Float8Linear)


@pytest.mark.slow
def test_a_learner_follows_the_curve_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps: bfloat16 around the products is emulated on some CPUs."""
    monkeypatch.setattr(float8, "refuse_float8", lambda _: None)
    plain = learner()
    short = learner(precision="fp8")
    for rows in batches(CONFIG, 0, 3):
        assert float(short.learn(rows).loss) == pytest.approx(float(plain.learn(rows).loss), rel=0.02)
    assert all(weight.dtype == torch.float32 for weight in short.weights().values())


def test_a_device_without_8_bit_products_is_refused() -> None:
    with pytest.raises(ConfigError, match="precision = fp8 needs a GPU that multiplies 8-bit floats"):
        learner(precision="fp8")
