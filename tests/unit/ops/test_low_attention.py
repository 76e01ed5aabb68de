"""Attention in 8 bits on plain twins: how near it stays, and what is packed when. Numbers are normal, the
hardest case."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from millstream.ops.low_attention import attend_packed
from millstream.ops.quantise_kv import pack_runs
from millstream.ops.quantised_kv import TILE, PackedQueries, QuantisedKV
from tests.unit.models_for_tests import relative_error

BATCH = 2
HEADS = 2
WIDTH = 32
CPU = torch.device("cpu")
START = torch.zeros(1, dtype=torch.int64)


def numbers(length: int) -> Tensor:
    return torch.randn(BATCH, length, HEADS, WIDTH)


def packed_of(k: Tensor, v: Tensor, *, mean: bool = True) -> QuantisedKV:
    packed = QuantisedKV.room(BATCH, k.shape[1], HEADS, WIDTH, device=CPU)
    if mean:
        packed.k_mean_RNH.copy_(k.mean(1))
        packed.v_mean_RNH.copy_(v.mean(1))
    pack_runs(packed, k, v, START, k.shape[1])
    return packed


def attended(q: Tensor, packed: QuantisedKV, keys: int) -> Tensor:
    return attend_packed(PackedQueries.of(q), packed, keys, dtype=torch.float32)


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


@settings(max_examples=25)
@given(queries=st.integers(1, 40), keys=st.integers(1, 3 * TILE), seed=st.integers(0, 2**31))
def test_it_stays_near_float32_at_any_length(queries: int, keys: int, seed: int) -> None:
    torch.manual_seed(seed)
    q = numbers(queries)
    k = numbers(keys)
    v = numbers(keys)
    assert relative_error(attended(q, packed_of(k, v), keys), exact(q, k, v)) <= 0.06


def test_it_costs_what_eight_bits_cost() -> None:
    q = numbers(64)
    k = numbers(500)
    v = numbers(500)
    assert 0.02 <= relative_error(attended(q, packed_of(k, v), 500), exact(q, k, v)) <= 0.045


def test_what_all_keys_have_in_common_costs_nothing_once_their_mean_is_taken() -> None:
    q = numbers(64)
    k = numbers(300)
    v = numbers(300)
    k = k + 40 * torch.randn(BATCH, 1, HEADS, WIDTH)
    wanted = exact(q, k, v)
    assert relative_error(attended(q, packed_of(k, v), 300), wanted) <= 0.06
    assert relative_error(attended(q, packed_of(k, v, mean=False), 300), wanted) >= 0.15


def test_what_all_values_have_in_common_is_in_the_answer_and_costs_nothing() -> None:
    q = numbers(64)
    k = numbers(300)
    v = numbers(300)
    common = 40 * torch.randn(BATCH, 1, HEADS, WIDTH)
    wanted = exact(q, k, v)
    assert relative_error(attended(q, packed_of(k, v + common), 300) - common, wanted) <= 0.06
    assert relative_error(attended(q, packed_of(k, v + common, mean=False), 300) - common, wanted) >= 0.15


@pytest.mark.parametrize("factor", [1e-6, 1e4])
def test_values_of_any_size_are_kept_as_well(factor: float) -> None:
    """A tile's scale may be far from the one before it."""
    q = numbers(20)
    k = numbers(300)
    v = numbers(300)
    v[:, TILE : 2 * TILE] *= factor
    assert relative_error(attended(q, packed_of(k, v), 300), exact(q, k, v)) <= 0.06


def test_large_scores_are_lifted_without_overflow() -> None:
    q = 12 * numbers(20)
    k = 12 * numbers(300)
    v = numbers(300)
    assert relative_error(attended(q, packed_of(k, v), 300), exact(q, k, v)) <= 0.15


def test_a_tile_of_zeros_is_no_special_case() -> None:
    q = numbers(20)
    k = numbers(300)
    v = numbers(300)
    k[:, :TILE], v[:, :TILE] = 0, 0
    assert relative_error(attended(q, packed_of(k, v, mean=False), 300), exact(q, k, v)) <= 0.06


def test_only_what_a_run_touches_is_packed_and_to_the_bits_that_packing_all_would_give() -> None:
    k = numbers(600)
    v = numbers(600)
    packed = packed_of(k, v)
    before = packed_of(k, v)
    k = numbers(600)
    v = numbers(600)
    anew = QuantisedKV(*(tensor.clone() for tensor in packed.tensors))
    pack_runs(anew, k, v, START, 600)
    pack_runs(packed, k, v, torch.tensor([0, 250]), 20)  # tile 0; tiles 1 and 2
    touched = [tile in (0, 1, 2) for tile in range(5)]
    for tile, is_new in enumerate(touched):
        part = slice(tile * TILE, (tile + 1) * TILE)
        wanted = anew if is_new else before
        assert torch.equal(packed.k_RWNH[:, part], wanted.k_RWNH[:, part])
        assert torch.equal(packed.vt_RNHW[..., part].float(), wanted.vt_RNHW[..., part].float())
        assert torch.equal(packed.k_scales_RNT[..., tile], wanted.k_scales_RNT[..., tile])
        assert torch.equal(packed.v_scales_RNT[..., tile], wanted.v_scales_RNT[..., tile])


def test_places_past_the_last_key_are_zeros_whatever_was_there() -> None:
    k = numbers(256)
    v = numbers(256)
    packed = packed_of(1e3 * k, 1e3 * v, mean=False)
    alone = packed_of(k[:, :130], v[:, :130], mean=False)
    pack_runs(packed, k[:, :130], v[:, :130], START, 130)
    for found, wanted in zip(packed.tensors, alone.tensors, strict=True):
        assert torch.equal(found.float(), wanted.float())
    assert not packed.k_RWNH[:, 130:].any()


def test_all_that_is_packed_lies_in_one_run_of_memory() -> None:
    packed = QuantisedKV.room(3, 200, 2, 32, device=torch.device("cpu"))
    storages = {tensor.untyped_storage().data_ptr() for tensor in packed.tensors}
    assert len(storages) == 1
    ends = [(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in packed.tensors]
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(ends)), "no part on another's"
    assert packed.k_scales_RNT.min() > 0
    assert not packed.k_mean_RNH.any()
