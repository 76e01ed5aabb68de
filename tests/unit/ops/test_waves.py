"""Attention in even waves: what is counted, and that parts put together are the whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from millstream.ops.attention import attend_in_shares
from millstream.ops.rows import finish_attention
from millstream.ops.waves import KEYS, QUERIES, Waves, even_waves, waves_of
from tests.unit.models_for_tests import relative_error

H200 = 132


def longest(tiles: int, processors: int, length: int) -> int:
    """How long the busiest processor reads keys, if tiles of one length are dealt out one by one."""
    busy = [0] * processors
    for tile in range(tiles):
        busy[tile % processors] += length
    return max(busy)


@pytest.mark.parametrize(
    ("queries", "keys", "heads", "expected"),
    [
        (4680, 14080, 12, Waves(33 * QUERIES, 5)),
        (4680, 32768, 12, Waves(33 * QUERIES, 8)),
        (2160, 4352, 40, Waves(16 * QUERIES, 2)),
        (4224, 14080, 12, None),
        (336, 1024, 12, None),
        (4680, 14040, 12, None),
    ],
    ids=["1.3B", "1.3B, window 21", "14B at 320x576", "whole waves", "too short", "keys that are not round"],
)
def test_what_is_found_for_real_streams(queries: int, keys: int, heads: int, expected: Waves | None) -> None:
    assert even_waves(queries, keys, heads, H200) == expected


@given(st.integers(1, 8000), st.integers(1, 160), st.integers(1, 40), st.integers(1, 140))
def test_even_waves_keep_every_processor_busy_for_less_time(
    queries: int, tiles: int, heads: int, processors: int
) -> None:
    found = even_waves(queries, tiles * KEYS, heads, processors)
    if found is None:
        return
    assert 0 < found.queries < queries
    assert found.queries % QUERIES == 0
    assert tiles % found.parts == 0
    rest = -(-(queries - found.queries) // QUERIES) * heads * found.parts
    apart = longest(found.queries // QUERIES * heads, processors, tiles) + longest(
        rest, processors, tiles // found.parts
    )
    assert apart < longest(-(-queries // QUERIES) * heads, processors, tiles)


@given(st.integers(1, 6), st.integers(2, 4), st.integers(0, 5), st.integers(0, 2**31))
def test_parts_put_together_are_the_whole(parts: int, heads: int, num_zeros: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, count, heads, 8, generator=generator) for count in (7, 12 * parts, 12 * parts))
    q = 3 * q  # so that parts weigh differently
    real = 12 * parts - num_zeros
    k[:, real:] = 0
    v[:, real:] = 0
    found = finish_attention(attend_in_shares(q, k, v, Waves(4, parts)), num_zeros, fp8=False)
    scores = torch.einsum("lnh,wnh->nlw", q[0].double(), k[0, :real].double()) * 8**-0.5
    expected = torch.einsum("nlw,wnh->lnh", scores.softmax(-1), v[0, :real].double()).flatten(1)
    assert isinstance(found, torch.Tensor)
    assert relative_error(found, expected.float()) <= 1e-5


def test_a_processor_has_no_waves() -> None:
    assert waves_of(torch.zeros(1, 4680, 12, 128), torch.zeros(1, 14080, 12, 128)) is None
