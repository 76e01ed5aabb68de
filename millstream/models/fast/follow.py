"""A model on the fast path that goes on learning elsewhere: where the weights of its plain layers lie in it.

Writing there changes what it computes; nothing is put together again.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from millstream.models.dit import CausalDiT
from millstream.models.fast.stack import FastStack


def plain_weights(dit: CausalDiT) -> dict[str, Tensor]:
    """All weights of a DiT by the names that they have in a plain one, whether its blocks are fast or not.
    Not of e4m3."""
    blocks = dit.blocks
    if not isinstance(blocks, FastStack):
        return {name: parameter.detach() for name, parameter in dit.named_parameters()}
    around = {
        name: parameter.detach()
        for name, parameter in dit.named_parameters()
        if not name.startswith("blocks.")
    }
    return around | dict(_of_blocks(blocks))


def _of_blocks(stack: FastStack) -> Iterator[tuple[str, Tensor]]:
    for layer, block in enumerate(stack):
        attention = block.self_attn
        cross = block.cross_attn
        name = f"blocks.{layer}"
        yield f"{name}.modulation", stack.modulations_N16D.detach()[layer]
        for norm, weight in (("self_attn.norm_q", attention.norm_q), ("self_attn.norm_k", attention.norm_k)):
            yield f"{name}.{norm}.weight", weight.detach()
        yield f"{name}.cross_attn.norm_q.weight", cross.norm_q.detach()
        for part, module in (("cross_norm", block.cross_norm), ("cross_attn.norm_k", cross.norm_k)):
            yield from (
                (f"{name}.{part}.{kind}", parameter.detach()) for kind, parameter in module.named_parameters()
            )
        for part, layer_of_it in (("cross_attn.k", cross.k), ("cross_attn.v", cross.v)):
            yield from (
                (f"{name}.{part}.{kind}", parameter.detach())
                for kind, parameter in layer_of_it.named_parameters()
            )
        for dense, parts in (
            (attention.qkv, ("self_attn.q", "self_attn.k", "self_attn.v")),
            (attention.out, ("self_attn.o",)),
            (cross.q, ("cross_attn.q",)),
            (cross.out, ("cross_attn.o",)),
            (block.up, ("ffn.up",)),
            (block.down, ("ffn.down",)),
        ):
            assert not dense.is_fp8, f"{name}: an e4m3 weight is made, not written"
            for kind, fused in (("weight", dense.weight.detach()), ("bias", dense.bias.detach())):
                yield from (
                    (f"{name}.{part}.{kind}", own)
                    for part, own in zip(parts, fused.chunk(len(parts)), strict=True)
                )
