"""Work of one operator from the shapes a trace recorded: floating-point operations, and bytes that must move
at least.

Bytes are inputs read once and outputs written once, as if caches held everything in between: a lower bound,
so what a trace reaches by it is a lower bound too. Operators whose output does not follow from their inputs
count their inputs alone. Shapes are JSON, as the trace has them: most are of operators that were called
before.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from millstream.profiler.event import Arguments
from millstream.profiler.kinds import VIEWS

_SIZES = {
    **dict.fromkeys(("double", "long int", "long", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("c10::bfloat16", "c10::half", "short int"), 2),
}
_PRODUCTS = {
    "aten::mm": 0,
    "aten::addmm": 1,
    "aten::bmm": 0,
    "aten::baddbmm": 1,
    "aten::_scaled_mm": 0,
    "aten::addmm_": 1,
}
"""Index of the first of the two matrices among the inputs."""
_CONVOLUTIONS = {
    "aten::cudnn_convolution": (3, 2),
    "aten::mkldnn_convolution": (4, 3),
    "aten::slow_conv3d_forward": (4, 5),
    "aten::_slow_conv2d_forward": (4, 5),
}
"""Indices of strides and padding among the inputs."""
_TOKENS_FIRST = re.compile(r"_(flash|efficient)_attention_(forward|backward)$|flash_attn::|^FlashAttn")
"""Attention over B,S,H,D; all others are over B,H,S,D."""
_CAUSAL_AT = {
    "aten::scaled_dot_product_attention": 5,
    "aten::_scaled_dot_product_flash_attention": 4,
    "aten::_scaled_dot_product_cudnn_attention": 6,
    "aten::_flash_attention_forward": 8,
}
"""Index of the input that says that half of the scores are left out (causal attention)."""
OWN_WORK = frozenset((*_PRODUCTS, *_CONVOLUTIONS))
"""Operators whose longest kernel is a matmul or a convolution, whatever it is called."""
MOST = 2**63
KEPT = 4096
"""Number of distinct calls, by shapes, whose work is remembered."""


def op_cost(name: str, args: Arguments) -> tuple[float, float]:
    """Return flops and bytes of an operator; 0 and 0 where the trace has no shapes, or the operator works
    through others."""
    if not args.has_shapes:
        return 0.0, 0.0
    by_values = "attention" in name or name in _CONVOLUTIONS
    return _cost(name, bytes(args.dims), bytes(args.types), bytes(args.concrete) if by_values else b"")


@lru_cache(maxsize=KEPT)
def _cost(name: str, dims: bytes, types: bytes, concrete: bytes) -> tuple[float, float]:
    shapes = [] if VIEWS.match(name) else _parsed(dims)
    inputs = _inputs(shapes, _parsed(types))
    if not inputs:
        return 0.0, 0.0
    size = inputs[0][1]
    read = _bytes_of(inputs)
    if name in _PRODUCTS:
        return _product(shapes, _PRODUCTS[name], read, size)
    if "attention" in name and len(inputs) >= 3:
        return _attention(name, shapes, _parsed(concrete), read, size)
    if name in _CONVOLUTIONS:
        return _convolution(name, shapes, _parsed(concrete), read, size)
    largest = max(math.prod(shape) for shape, _ in inputs)
    return float(largest), read + largest * size


def input_bytes(args: Arguments) -> float:
    """Return the bytes of all input tensors; 0 where the trace has no shapes."""
    return _input_bytes(bytes(args.dims), bytes(args.types)) if args.has_shapes else 0.0


@lru_cache(maxsize=KEPT)
def _input_bytes(dims: bytes, types: bytes) -> float:
    return _bytes_of(_inputs(_parsed(dims), _parsed(types)))


def _parsed(text: bytes) -> list[Any]:
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return []
    return found if isinstance(found, list) else []


def _bytes_of(inputs: Sequence[tuple[list[int], int]]) -> float:
    return float(sum(math.prod(shape) * size for shape, size in inputs))


def _inputs(dims: list[Any], types: list[Any]) -> list[tuple[list[int], int]]:
    """Return each input's shape and bytes of a value; an empty list if any shape is not understood."""
    if not all(_is_shape(shape) for shape in dims):
        return []
    found = [(shape, _value_bytes(types, index)) for index, shape in enumerate(dims) if shape]
    return [(shape, size) for shape, size in found if size]


def _product(dims: Sequence[Any], at: int, read: float, size: int) -> tuple[float, float]:
    if len(dims) < at + 2 or len(dims[at]) < 2 or len(dims[at + 1]) < 2:
        return 0.0, 0.0
    *batch, rows, inner = dims[at]
    columns = dims[at + 1][-1]
    written = math.prod(batch) * rows * columns
    return 2.0 * written * inner, read + written * size


def _attention(
    name: str, dims: Sequence[Any], concrete: Sequence[str], read: float, size: int
) -> tuple[float, float]:
    """Return flops and bytes of attention. In a backward pass the first input is the gradient, and each
    matmul of the forward pass becomes two and a half."""
    backward = "backward" in name
    q, k = dims[1:3] if backward else dims[:2]
    if len(q) != 4 or len(k) != 4:
        return 0.0, 0.0
    tokens = 1 if _TOKENS_FIRST.search(name) else 2
    flops = 4.0 * math.prod(q) * k[tokens] * (2.5 if backward else 1.0)
    causal = name in _CAUSAL_AT and q[tokens] == k[tokens] and _said(concrete, _CAUSAL_AT[name]) == "True"
    return flops / 2 if causal else flops, read + math.prod(q) * size


def _said(concrete: Sequence[str], at: int) -> str:
    return str(concrete[at]) if isinstance(concrete, list) and at < len(concrete) else ""


def _convolution(
    name: str, dims: Sequence[Any], concrete: Sequence[str], read: float, size: int
) -> tuple[float, float]:
    if len(dims) < 2:
        return 0.0, 0.0
    x = dims[0]
    weight = dims[1]
    strides, padding = (_numbers(concrete, at) for at in _CONVOLUTIONS[name])
    spatial = len(x) - 2
    if spatial < 1 or len(weight) != len(x):
        return 0.0, 0.0
    strides = (strides or [1]) * spatial
    padding = (padding or [0]) * spatial
    out = [
        max(1, (x[2 + i] + 2 * padding[i] - weight[2 + i]) // max(1, strides[i]) + 1) for i in range(spatial)
    ]
    written = x[0] * weight[0] * math.prod(out)
    return 2.0 * written * math.prod(weight[1:]), read + written * size


def _numbers(concrete: Sequence[str], at: int) -> list[int]:
    try:
        numbers = json.loads(concrete[at])
    except (IndexError, ValueError, TypeError):
        return []
    return numbers if _is_shape(numbers) else []


def _is_shape(shape: Any) -> bool:
    """Return whether this can be a tensor's shape: PyTorch writes none with more values than 64 bits can
    count."""
    return (
        isinstance(shape, list)
        and all(isinstance(number, int) and 0 <= number < MOST for number in shape)
        and math.prod(shape) < MOST
    )


def _value_bytes(types: Sequence[str], index: int) -> int:
    kind = str(types[index]).lower() if index < len(types) else ""
    if kind.startswith(("c10::float8", "unsigned char", "signed char", "bool")):
        return 1
    return _SIZES.get(kind, 0)
