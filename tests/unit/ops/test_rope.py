"""Rotary phases stay exact however long a stream runs."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.ops.rope import axis_pairs, frame_phases, rotate, shift_phases

HEAD = 24


def test_wan_splits_a_head_of_128_into_22_21_and_21_pairs() -> None:
    assert axis_pairs(128) == (22, 21, 21)


@settings(max_examples=30)
@given(st.integers(0, 10_000_000), st.integers(0, 40))
def test_attention_scores_depend_on_the_distance_in_frames_only(start: int, distance: int) -> None:
    generator = torch.Generator().manual_seed(start % 1000)
    q, k = (torch.randn(6, 2, HEAD, generator=generator) for _ in range(2))

    def score(frame: int) -> torch.Tensor:
        at_q = frame_phases(torch.tensor([frame + distance]), (2, 3), HEAD)
        at_k = frame_phases(torch.tensor([frame]), (2, 3), HEAD)
        return torch.einsum("lnh,mnh->nlm", rotate(q, at_q), rotate(k, at_k))

    assert torch.allclose(score(start), score(0), atol=2e-5)


def test_phases_of_a_far_frame_match_exact_arithmetic() -> None:
    frame = 123_456_789
    phases = frame_phases(torch.tensor([frame]), (1, 1), HEAD)
    pairs = axis_pairs(HEAD)[0]
    for pair in range(pairs):
        turns = math.fmod(frame * 10000.0 ** (-pair / pairs), 2 * math.pi)
        assert abs(float(phases.cos[0, 0, pair]) - math.cos(turns)) < 1e-6
        assert abs(float(phases.sin[0, 0, pair]) - math.sin(turns)) < 1e-6


def test_shifting_a_key_equals_writing_it_elsewhere() -> None:
    k = torch.randn(6, 2, HEAD)
    here = rotate(k, frame_phases(torch.tensor([4]), (2, 3), HEAD))
    there = rotate(k, frame_phases(torch.tensor([1004]), (2, 3), HEAD))
    moved = rotate(here, shift_phases(torch.tensor([1000]), 6, HEAD))
    assert torch.allclose(moved, there, atol=1e-5)


@settings(max_examples=30)
@given(
    st.sampled_from([12, 16, 24, 32, 64, 96, 128]),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(0, 1000),
)
def test_a_stream_turns_channels_to_the_bits_of_the_formula(
    head: int, heads: int, rows: int, dtype: torch.dtype, start: int
) -> None:
    """Without gradients a CPU may take a quicker way, and journals are held to the bit."""
    x = torch.randn(rows, 12, heads, head, generator=torch.Generator().manual_seed(start)).to(dtype)
    phases = frame_phases(torch.tensor([start, start + 1]), (2, 3), head)
    even = x.float()[..., ::2]
    odd = x.float()[..., 1::2]
    expected = torch.empty_like(x)
    expected[..., ::2] = (even * phases.cos - odd * phases.sin).to(dtype)
    expected[..., 1::2] = (even * phases.sin + odd * phases.cos).to(dtype)
    with torch.inference_mode():
        assert torch.equal(rotate(x, phases), expected)
    assert torch.equal(rotate(x, phases), expected)
