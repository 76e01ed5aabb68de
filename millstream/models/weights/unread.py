"""Parameters that are still in their files: they have shapes, and are read when whoever holds a part of a
model needs them.

A rank that trains takes its part block by block: of a model that none of them could hold whole, each has its
own part and one block at a time. Knows neither ranks nor what is done with the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

Read = Callable[[], Tensor]


class UnreadParameter(nn.Parameter):
    """On the meta device until it is brought."""

    read: Read

    def cut(self, keep: Callable[[Tensor], Tensor]) -> UnreadParameter:
        """A part of it, not read either."""
        read = self.read
        return unread(keep(self.detach()), lambda: keep(read()).clone(), requires_grad=self.requires_grad)


def unread(like: Tensor, read: Read, *, requires_grad: bool = False) -> UnreadParameter:
    """Return a parameter like `like` whose values are still to be read, by `read`."""
    assert like.is_meta, f"{tuple(like.shape)} is there already, on {like.device}"
    parameter = UnreadParameter(like, requires_grad=requires_grad)
    parameter.read = read
    return parameter


@torch.no_grad()
def bring(parameters: Iterable[nn.Parameter]) -> None:
    """Read those parameters that are not read yet; they stay the same objects."""
    for parameter in parameters:
        if isinstance(parameter, UnreadParameter):
            values = parameter.read()
            assert values.shape == parameter.shape, (
                f"{tuple(values.shape)} were read for {tuple(parameter.shape)}"
            )
            torch.utils.swap_tensors(parameter, nn.Parameter(values, requires_grad=parameter.requires_grad))
