"""Noise is a pure function of (seed, epoch, chunk, step)."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.ops.noise import COMMIT_STEP, gaussian, gaussian_rows, philox


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # known answers of Philox 4x32-10, from its authors' test vectors
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: tuple, key: tuple, expected: tuple) -> None:
    words = tuple(torch.tensor([word]) for word in counter)
    assert tuple(int(word) for word in philox(words, key)) == expected


def test_noise_is_standard_normal() -> None:
    noise = gaussian((1_000_000,), seed=7, epoch=0, chunk=3, step=1)
    assert abs(float(noise.mean())) < 5e-3
    assert abs(float(noise.std()) - 1) < 5e-3
    assert abs(float((noise**3).mean())) < 2e-2
    assert abs(float((noise**4).mean()) - 3) < 5e-2
    assert torch.isfinite(noise).all()
    neighbours = (noise[1:] * noise[:-1]).mean()
    assert abs(float(neighbours)) < 5e-3


identity = st.tuples(
    st.integers(0, 2**63 - 1), st.integers(-1, 2**31), st.integers(0, 2**31), st.integers(0, 0xFFFF)
)


@settings(max_examples=60)
@given(identity, identity, st.integers(1, 40))
def test_equal_names_give_equal_noise_and_others_do_not(first: tuple, second: tuple, count: int) -> None:
    def noise(name: tuple) -> torch.Tensor:
        return gaussian((count, 3), **dict(zip(("seed", "epoch", "chunk", "step"), name, strict=True)))

    assert torch.equal(noise(first), noise(first))
    assert torch.equal(noise(first), noise(second)) == (first == second)


def test_epoch_chunk_and_step_do_not_stand_for_each_other() -> None:
    """All small names, where one number might make up for another: one more chunk for one epoch less."""
    names = list(itertools.product(range(3), repeat=4))
    drawn = {
        tuple(gaussian((4,), seed=seed, epoch=epoch, chunk=chunk, step=step).tolist())
        for seed, epoch, chunk, step in names
    }
    assert len(drawn) == len(names)


def test_a_shorter_request_is_a_prefix_of_a_longer_one() -> None:
    name = dict(seed=5, epoch=1, chunk=2, step=0)
    assert torch.equal(gaussian((10,), **name), gaussian((999,), **name)[:10])


@pytest.mark.parametrize("shape", [(1,), (3, 5, 7), (3, 4, 8, 10)])
def test_rows_of_a_batch_have_the_bits_that_each_has_alone(shape: tuple[int, ...]) -> None:
    seeds = [5, -3, 2**40 + 1]
    name = dict(epoch=1, chunk=2, step=COMMIT_STEP)
    rows = gaussian_rows(shape, torch.tensor(seeds), **name)
    assert torch.equal(rows, torch.stack([gaussian(shape, seed=seed, **name) for seed in seeds]))
