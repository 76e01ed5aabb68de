"""Products in bytes, held against the same products of the numbers that the bytes stand for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from millstream.ops.int8 import (
    Int8Linear,
    Int8MLP,
    Int8Weight,
    Range,
    is_available,
    to_bytes,
)

pytestmark = pytest.mark.skipif(not is_available(), reason="this build of torch has no oneDNN")

OVER = Range(-3.0, 5.0)
BOUNDS = st.floats(-1e4, 1e4, allow_nan=False)


def from_bytes(x: Tensor, over: Range) -> Tensor:
    return (x.float() - over.zero) * over.scale


def restored(weight: Tensor) -> Tensor:
    """The weight that is multiplied with: a float, but one of 255."""
    values, scales = Int8Weight.of(weight)
    return values.float() * scales[:, None]


@settings(max_examples=60)
@given(BOUNDS, BOUNDS, st.lists(st.floats(-2e4, 2e4, allow_nan=False, width=32), min_size=1, max_size=20))
def test_a_byte_is_within_half_a_step_of_what_it_stands_for(
    low: float, high: float, values: list[float]
) -> None:
    over = Range(min(low, high), max(low, high))
    assert 0 <= over.zero <= 255
    x = torch.tensor(values)
    held = x.clamp((0 - over.zero) * over.scale, (255 - over.zero) * over.scale)
    assert (
        from_bytes(to_bytes(x, over), over) - held
    ).abs().max() <= 0.51 * over.scale + 1e-4 * held.abs().max()


def test_zero_is_exactly_a_byte() -> None:
    assert from_bytes(to_bytes(torch.zeros(3), OVER), OVER).eq(0).all()


def test_a_linear_layer_is_the_product_of_what_the_bytes_stand_for() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(32, 48)
    x = torch.randn(2, 7, 32)
    seen = from_bytes(to_bytes(x, OVER), OVER)
    expected = F.linear(seen, restored(plain.weight), plain.bias)
    assert torch.allclose(Int8Linear(plain, OVER)(x), expected, atol=1e-5)


def test_an_mlp_rounds_its_hidden_numbers_to_bytes() -> None:
    torch.manual_seed(0)
    up = nn.Linear(32, 48)
    down = nn.Linear(48, 16)
    x = torch.randn(5, 32)
    between = Range(-0.2, 2.0)
    seen = from_bytes(to_bytes(x, OVER), OVER)
    hidden = F.gelu(F.linear(seen, restored(up.weight), up.bias), approximate="tanh")
    expected = F.linear(hidden.clamp(-0.2, 2.0), restored(down.weight), down.bias)
    found = Int8MLP(Int8Linear(up, OVER), Int8Linear(down, between))(x)
    step = between.scale * restored(down.weight).abs().sum(1).max()
    assert (found - expected).abs().max() <= step


@pytest.mark.parametrize(("kind", "by"), [("avx2", "none"), ("vnni", "tanh")])
def test_gelu_is_by_erf_on_avx2_alone(kind: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a range so narrow that its bytes tell one from the other."""
    monkeypatch.setenv("MILLSTREAM_CPU", kind)
    plain = nn.Linear(1, 1)
    x = torch.linspace(-3, -1.5, 200)[:, None]
    narrow = Range(-0.1, 0.0)
    nn.init.ones_(plain.weight)
    nn.init.zeros_(plain.bias)
    seen = from_bytes(to_bytes(x, OVER), OVER) * restored(plain.weight)
    found = Int8Linear(plain, OVER).gelu_bytes(x, narrow).int()
    apart = {
        which: (found - to_bytes(F.gelu(seen, approximate=which), narrow).int()).abs()
        for which in ("none", "tanh")
    }
    assert apart[by].max() == 0
    assert max(each.max() for each in apart.values()) > 0


def test_gelu_by_erf_and_by_tanh_are_as_near_as_is_said() -> None:
    x = torch.linspace(-10, 10, 100_001)
    assert (F.gelu(x) - F.gelu(x, approximate="tanh")).abs().max() <= 0.0005


def test_rows_do_not_depend_on_who_shares_the_call() -> None:
    torch.manual_seed(0)
    layer = Int8Linear(nn.Linear(32, 48), OVER)
    mine = torch.randn(1, 7, 32)
    theirs = 100 * torch.randn(1, 7, 32)
    assert torch.equal(layer(torch.cat([mine, theirs]))[:1], layer(mine))
