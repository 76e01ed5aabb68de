"""A norm in two halves, between which ranks sum: the formula's bits, its gradients, and nothing wide kept for
the way back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from millstream.ops.norms import rms_norm, scaled, sum_of_squares

EPS = 1e-6


def in_halves(x: Tensor, weight: Tensor) -> Tensor:
    return scaled(x, (sum_of_squares(x) / x.shape[-1] + EPS).rsqrt(), weight)


def by_formula(x: Tensor, weight: Tensor) -> Tensor:
    length = (x.float().square().sum(dim=-1, keepdim=True) / x.shape[-1] + EPS).rsqrt()
    return (x.float() * length * weight.float()).to(x.dtype)


def made(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    weight = torch.rand(8)
    gradient = torch.randn(2, 5, 8)
    return x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), gradient.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_halves_are_the_formula_and_so_are_their_gradients(dtype: torch.dtype) -> None:
    x, weight, gradient = made(dtype)
    found = in_halves(x, weight)
    wanted = by_formula(x, weight)
    assert found.equal(wanted)
    of_found, of_wanted = (torch.autograd.grad(each, (x, weight), gradient) for each in (found, wanted))
    rounding = torch.finfo(dtype).eps
    for ours, theirs in zip(of_found, of_wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=4 * rounding, atol=4 * rounding)


def test_gradients_are_those_of_the_whole_norm() -> None:
    x, weight, gradient = made(torch.float32)
    found, wanted = (
        torch.autograd.grad(norm, (x, weight), gradient)
        for norm in (in_halves(x, weight), rms_norm(x, weight, EPS))
    )
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_what_is_kept_for_the_way_back_is_as_narrow_as_what_came() -> None:
    x, weight, _ = made(torch.bfloat16)
    kept: dict[int, Tensor] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda each: kept.setdefault(each.data_ptr(), each), lambda each: each
    ):
        in_halves(x, weight)
    assert all(each.dtype == torch.bfloat16 for each in kept.values() if each.shape == x.shape)
