"""Recomputation and compilation of blocks: what a block keeps from its forward pass for its backward pass,
what it computes again, and whether it is compiled.

`none` keeps everything. `full` keeps a block's input and makes the rest again, which costs another forward
pass. `products` keeps besides what self-attention gave, which is most of that pass's time and as large as the
input. `selective` keeps what all matmuls and attention gave, which is dear to make and a small part of what
is kept, and makes norms, activations and modulations again, which is cheap.

A compiled block is one graph, the same for all blocks of a model, so that one of them is compiled. What is
made again there is fused into the kernels that need it, and even `none` does so with the MLP's activation,
the largest tensor of a block: it is written beside its own gradient. With `full` the graph is run twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from millstream.core.config import Recompute
from millstream.models.dit import Block, CausalDiT, CrossKV
from millstream.models.kv import Memory, WholeSequence
from millstream.ops.piecewise import ATTEND_SPANS

_aten = torch.ops.aten
PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten._scaled_mm.default}
ATTENTION = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    ATTEND_SPANS,
}
ACTIVATION = {_aten.gelu.default}
ROLES_AND_SEQUENCES = 32
"""Limit of compilations, above what any training needs; if a block is compiled more often than this,
something is wrong."""


def prepare_blocks(dit: CausalDiT, how: Recompute, *, backend: str = "") -> None:
    """Set up recomputation in place, before the blocks are shared out. With a `backend`, blocks are compiled
    by it where they attend within a whole sequence."""
    run: Callable[..., Tensor] = _block
    if how in ("selective", "products") or (how == "none" and backend):
        run = partial(checkpoint, run, use_reentrant=False, context_fn=_CONTEXTS[how])
    if backend:
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, ROLES_AND_SEQUENCES)
        run = torch.compile(run, backend=backend, fullgraph=True, dynamic=False)
    if how == "full":
        run = partial(checkpoint, run, use_reentrant=False)
    if run is _block:
        return
    for block in dit.blocks:
        forward = _forward(block, run, is_compiled=bool(backend))
        setattr(block, "forward", forward)  # noqa: B010 - typed as a method


def _forward(block: Block, run: Callable[..., Tensor], *, is_compiled: bool) -> Callable[..., Tensor]:
    def forward(x_BFTD: Tensor, levels_BF6D: Tensor, layer: int, memory: Memory, cross: CrossKV) -> Tensor:
        if not is_compiled:
            taken = (
                run if torch.is_grad_enabled() else _block
            )  # nothing to make again; forward-mode derivatives want it plain
            return taken(block, x_BFTD, levels_BF6D, layer, memory, cross)
        if not isinstance(memory, WholeSequence):
            return _block(block, x_BFTD, levels_BF6D, layer, memory, cross)
        own = CrossKV((cross.k[layer],), (cross.v[layer],))  # a graph must not know which layer it is
        return run(block, x_BFTD, levels_BF6D, 0, memory, own)

    return forward


def _block(block: Block, *given: Any) -> Tensor:
    """Call a block's forward pass as its class defines it; the instance's own `forward` leads here."""
    return type(block).forward(block, *given)


def _keeps(is_kept: bool) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def _none(_: Any, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    """Return the policy of `none` for a compiled block: recompute the activation and leave the rest to the
    compiler."""
    return CheckpointPolicy.PREFER_RECOMPUTE if operation in ACTIVATION else CheckpointPolicy.PREFER_SAVE


def _selective(_: Any, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    return _keeps(operation in PRODUCTS or operation in ATTENTION)


def _products(_: Any, operation: Any, *given: Any, **__: Any) -> CheckpointPolicy:
    """Return the policy of `products`: keep self-attention. A prompt has fewer keys than there are queries,
    and attending to it is cheap."""
    is_of_itself = operation is ATTEND_SPANS or (
        operation in ATTENTION and given[1].shape[-2] >= given[0].shape[-2]
    )
    return _keeps(is_of_itself)


def _contexts(policy: Callable[..., CheckpointPolicy]) -> Callable[[], Any]:
    return lambda: create_selective_checkpoint_contexts(policy)


_CONTEXTS = {"none": _contexts(_none), "selective": _contexts(_selective), "products": _contexts(_products)}
