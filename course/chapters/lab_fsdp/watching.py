"""Share of a sharded model that is whole at a moment. One that is in parts is a DTensor; one that was
collected is not."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor


def whole_bytes(model: nn.Module) -> int:
    """Return the bytes of parameters that are whole on this rank now."""
    return sum(
        each.numel() * each.element_size() for each in model.parameters() if not isinstance(each, DTensor)
    )


def watch(model: nn.Sequential) -> list[int]:
    """Return a list to which the whole bytes of the model are added at every block's turn in a forward
    pass."""
    seen = list[int]()

    def look(*_: Any) -> None:
        seen.append(whole_bytes(model))

    for block in model:
        assert isinstance(block, nn.Sequential), f"a block is a {type(block)}"
        block[0].register_forward_hook(look)
    return seen
