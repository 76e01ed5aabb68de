"""What a block keeps from its forward pass for its backward pass, and what it makes again.

`none` keeps everything. `full` keeps a block's input and makes the rest again, which costs another forward pass. `selective`
keeps what products and attention gave, which is dear to make and a small part of what is kept, and makes norms, activations and
modulations again, which is cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from millstream.core.config import Recompute
from millstream.models.dit import CausalDiT

_aten = torch.ops.aten
KEPT = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten._scaled_mm.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
}
"""Operations whose results `selective` keeps."""


def recompute_blocks(dit: CausalDiT, how: Recompute) -> None:
    """In place; before the blocks are shared out."""
    if how == "none":
        return
    given: dict[str, Any] = {"context_fn": _contexts} if how == "selective" else {}
    for block in dit.blocks:
        plain: Callable[..., Any] = block.forward
        setattr(block, "forward", partial(checkpoint, plain, use_reentrant=False, **given))  # noqa: B010 - typed as a method


def _contexts() -> Any:
    return create_selective_checkpoint_contexts(_policy)


def _policy(_: Any, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
