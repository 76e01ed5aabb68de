"""Pieces beside each other, with zeros among their keys, are pieces one after the other: what they give and
its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from millstream.ops.piecewise import PiecesBeside, TokenPiece, attend_beside, attend_pieces, filled_unit

UNIT = 126
LAYOUTS = {
    "each its past": [
        TokenPiece(slice(0, 126), (slice(0, 126),)),
        TokenPiece(slice(126, 378), (slice(0, 378),)),
    ],
    "some of its past, and itself": [
        TokenPiece(slice(0, 126), (slice(0, 126),)),
        TokenPiece(slice(126, 252), (slice(126, 252),)),
        TokenPiece(slice(252, 378), (slice(0, 126), slice(252, 378))),
    ],
}


def attended(pieces: list[TokenPiece], unit: int) -> tuple[Tensor, ...]:
    """And the gradients of queries, keys and values; one piece after the other where `unit` is 0."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, weights = (torch.randn(2, 378, 3, 8, generator=generator) for _ in range(4))
    given = [each.requires_grad_() for each in (q, k - 1, v)]
    out = attend_beside(*given, PiecesBeside.of(pieces, unit)) if unit else attend_pieces(*given, pieces)
    return out, *torch.autograd.grad((out * weights).sum(), given)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("unit", [UNIT, 18])
def test_pieces_beside_each_other_give_what_they_give_in_turn(layout: str, unit: int) -> None:
    for found, expected in zip(attended(LAYOUTS[layout], unit), attended(LAYOUTS[layout], 0), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("away", [1.0, 2.0, 3.0])
def test_queries_that_are_far_from_all_keys_lose_nothing_to_the_zeros(away: float) -> None:
    """Mean scores of -3, -11 and -25."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, weights = (torch.randn(1, 378, 3, 8, generator=generator) for _ in range(4))
    given = [each.requires_grad_() for each in (q + away, k - away, v)]
    pieces = LAYOUTS["some of its past, and itself"]

    def grads(out: Tensor, given: list[Tensor]) -> tuple[Tensor, ...]:
        return out, *torch.autograd.grad((out * weights.to(out.dtype)).sum(), given)

    exact = [each.detach().double().requires_grad_() for each in given]
    expected = grads(attend_pieces(*exact, pieces), exact)
    for found, wanted in zip(
        grads(attend_beside(*given, PiecesBeside.of(pieces, UNIT)), given), expected, strict=True
    ):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)


def test_few_zeros_fill_a_unit_and_many_do_not() -> None:
    assert [filled_unit(unit) for unit in (126, 128, 1560, 4680, 2160)] == [128, 128, 1560, 4736, 2176]


@pytest.mark.slow  # it compiles
def test_a_compiler_sees_the_same() -> None:
    pieces = PiecesBeside.of(LAYOUTS["some of its past, and itself"], UNIT)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend_beside(q, k, v, pieces)

    found = list[list[Tensor]]()
    for step in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(0)
        given = [torch.randn(1, 378, 2, 8, requires_grad=True) for _ in range(3)]
        out = step(*given)
        found.append([out, *torch.autograd.grad(out.square().sum(), given)])
    assert all(map(torch.equal, *found))


def test_tokens_that_are_not_in_units_are_refused() -> None:
    with pytest.raises(AssertionError, match="units of 252"):
        PiecesBeside.of(LAYOUTS["each its past"], 252)
