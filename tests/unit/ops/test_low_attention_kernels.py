"""Kernels of attention in 8 bits against their plain twins, in Triton's interpreter."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("a GPU is here: tests/gpu runs these kernels compiled", allow_module_level=True)
pytest.importorskip("triton", reason="needs Triton, which interprets kernels on a CPU")

import triton.language as tl
from triton.runtime import interpreter

from millstream.ops.fp8 import E4M3
from millstream.ops.kernels.low_attention import launch_attend_packed
from millstream.ops.kernels.quantise_kv import launch_pack_runs
from millstream.ops.kernels.ring_write import launch_write_ring
from millstream.ops.low_attention import attend_packed
from millstream.ops.quantise_kv import pack_runs
from millstream.ops.quantised_kv import PackedQueries, QuantisedKV
from millstream.ops.ring_write import write_ring
from millstream.ops.rope import frame_phases
from tests.unit.models_for_tests import relative_error

pytestmark = pytest.mark.filterwarnings("ignore")  # numpy, inside the interpreter

ROWS = 2
HEADS = 2
WIDTH = 32


@pytest.fixture(autouse=True)
def _mended_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot loop to a number that is not a constant, and its e4m3 loses the carry when it rounds up."""
    convert = interpreter._convert_float

    def converted(x: Any, source: Any, target: Any, rounding: Any) -> Any:
        if target != tl.float8e4nv:
            return convert(x, source, target, rounding)
        return torch.from_numpy(np.ascontiguousarray(x)).to(E4M3).view(torch.uint8).numpy()

    def counted(*bounds: Any) -> builtins.range:
        return builtins.range(
            *(each if isinstance(each, int) else each.handle.data.item() for each in bounds)
        )

    monkeypatch.setattr(interpreter, "_convert_float", converted)
    monkeypatch.setattr(interpreter, "range", counted, raising=False)


def rooms(places: int) -> tuple[QuantisedKV, QuantisedKV]:
    """Alike, and full of something."""
    found, expected = (
        QuantisedKV.room(ROWS, places, HEADS, WIDTH, device=torch.device("cpu")) for _ in range(2)
    )
    for tensors in zip(found.tensors, expected.tensors, strict=True):
        filled = torch.randn(tensors[0].shape)
        for tensor in tensors:
            tensor.copy_(filled)
    return found, expected


@pytest.mark.parametrize(
    ("starts", "length", "places"), [([0], 300, 300), ([260, 0, 130], 40, 300), ([120, 200], 80, 280)]
)
def test_packing_equals_its_twin_and_leaves_the_rest(starts: list[int], length: int, places: int) -> None:
    found, expected = rooms(300)
    k, v = torch.randn(2, ROWS, 300, HEADS, WIDTH)[:, :, :places]
    beginnings = torch.tensor([start for start in starts for _ in range(3)])[::3]
    launch_pack_runs(found, k, v, beginnings, length)
    pack_runs(expected, k, v, beginnings, length)
    for ours, twins in zip(found.tensors, expected.tensors, strict=True):
        assert relative_error(ours.float(), twins.float()) <= 1e-3, (
            "one place of the last that rounds the other way, at most"
        )


@pytest.mark.parametrize(("queries", "keys"), [(70, 256), (64, 300), (5, 100), (3, 128)])
def test_attention_equals_its_twin(queries: int, keys: int) -> None:
    packed, _ = rooms(300)
    k, v = torch.randn(2, ROWS, 300, HEADS, WIDTH)
    v[:, :128] *= 50
    pack_runs(packed, k, v, torch.zeros(1, dtype=torch.int64), 300)
    q = PackedQueries.of(torch.randn(ROWS, queries, HEADS, WIDTH))
    found = launch_attend_packed(q, packed, keys, dtype=torch.float32)
    expected = attend_packed(q, packed, keys, dtype=torch.float32)
    assert relative_error(found, expected) <= 4e-3, "probabilities on an edge of e4m3 round the other way"


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("heads", [2, 3])
def test_queries_are_packed_as_they_are_written(heads: int, batch: int) -> None:
    width = heads * WIDTH
    grid = (1, 2)
    phases = frame_phases(torch.tensor([4, 5, 9]), grid, WIDTH)
    qkv, (weight_q, weight_k) = torch.randn(batch, 6, 3 * width), torch.randn(2, width).unbind()
    index = torch.tensor([2, 3, 8, 9, 0, 1])
    rings = [torch.full((batch, 12, heads, WIDTH), 7.0) for _ in range(4)]
    found = launch_write_ring(
        qkv, weight_q, weight_k, phases, index, rings[0], rings[1], eps=1e-6, packs=True
    )
    expected = write_ring(qkv, weight_q, weight_k, phases, index, rings[2], rings[3], eps=1e-6, packs=True)
    assert isinstance(found, PackedQueries)
    assert isinstance(expected, PackedQueries)
    assert (found.numbers.int() - expected.numbers.int()).abs().max() <= 1
    assert found.numbers.dtype == torch.int8
    assert found.numbers.abs().amax(-1).eq(127).all(), "each head's largest is the largest there is"
    assert relative_error(found.scales, expected.scales) <= 1e-6
    assert relative_error(torch.stack(rings[:2]), torch.stack(rings[2:])) <= 1e-6
