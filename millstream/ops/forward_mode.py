"""Attention under forward-mode derivatives, which torch's fused kernels do not have: the answer by those, its
change beside it.

For queries q, keys k and values v, with p = softmax(q k) and everything scaled, the answer p v changes by
p (ds - sum(p ds)) v + p dv, where ds = dq k + q dk. Scores are written out for some queries at a time.
Shapes: B batch, N heads, L queries, W keys, H head width.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

MOST_SCORES = 2**26
"""Most scores that are in memory at once."""


@contextmanager
def forward_mode() -> Iterator[None]:
    """A level of dual numbers, within which attention knows how it changes."""
    with warnings.catch_warnings():  # of torch's own way to make derivatives for it
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")
    with forward_ad.dual_level(), ChangingAttention():
        yield


class ChangingAttention(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        assert not any((kwargs or {}).values()), f"attention with {kwargs} does not say how it changes"
        (q, dq), (k, dk), (v, dv) = (forward_ad.unpack_dual(each) for each in args)
        out = func(q, k, v)
        if dq is None and dk is None and dv is None:
            return out
        return forward_ad.make_dual(out, attention_change((q, k, v), (dq, dk, dv)).to(out.dtype))


def attention_change(
    of: tuple[Tensor, Tensor, Tensor], by: tuple[Tensor | None, Tensor | None, Tensor | None]
) -> Tensor:
    """How attention [B, N, L, H] changes, in float32; what does not change is None."""
    k, v = (each.float() for each in of[1:])
    dk, dv = (None if each is None else each.float() for each in by[1:])
    scale = of[0].shape[-1] ** -0.5
    rows = max(1, MOST_SCORES // (of[0].shape[0] * of[0].shape[1] * k.shape[2]))
    found = list[Tensor]()
    for begin in range(0, of[0].shape[2], rows):
        q = of[0][:, :, begin : begin + rows].float() * scale
        p_BNLW = (q @ k.mT).softmax(-1)
        ds_BNLW = torch.zeros_like(p_BNLW) if dk is None else q @ dk.mT
        if by[0] is not None:
            ds_BNLW = ds_BNLW + by[0][:, :, begin : begin + rows].float() * scale @ k.mT
        change = p_BNLW * (ds_BNLW - (p_BNLW * ds_BNLW).sum(-1, keepdim=True)) @ v
        found.append(change if dv is None else change + p_BNLW @ dv)
    return torch.cat(found, dim=2)
