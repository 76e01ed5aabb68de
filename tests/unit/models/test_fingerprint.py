"""Two models have one fingerprint if and only if they are the same to the bit."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from millstream.models.weights.fingerprint import fingerprint
from tests.unit.checkpoints import random_module

pytestmark = pytest.mark.slow

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


@cache
def known(dtype: torch.dtype) -> tuple[nn.Module, str]:
    """A model and its fingerprint. Whoever changes it puts back what was there."""
    module = random_module("dit", dtype=dtype)
    return module, fingerprint({"dit": module})


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_have_the_same_fingerprint(dtype: torch.dtype) -> None:
    assert fingerprint({"dit": random_module("dit", dtype=dtype)}) == known(dtype)[1]


@settings(max_examples=60)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_any_flipped_bit_or_swap_changes_the_fingerprint(data: st.DataObject, dtype: torch.dtype) -> None:
    module, before = known(dtype)
    name, parameter = data.draw(st.sampled_from(list(module.named_parameters())))
    raw = parameter.data.view(-1).view(torch.uint8)
    there = raw.clone()
    i, j = (data.draw(st.integers(0, raw.numel() - 1)) for _ in range(2))
    if data.draw(st.booleans()):
        raw[i] ^= 1 << data.draw(st.integers(0, 7))
        changed = True
    else:
        changed = bool(raw[i] != raw[j])
        raw[[i, j]] = raw[[j, i]]
    found = fingerprint({"dit": module})
    raw.copy_(there)
    assert (found != before) == changed, name


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
