"""From tokens back to latent cells on the fast path: the norm and its modulation as one pass over memory.

Shapes: B rows (sessions), F frames, T tokens a frame, L = B*F*T tokens, D width.
"""

from __future__ import annotations

from torch import Tensor, nn

from millstream.models.dit import Head
from millstream.ops.rows import add_norm


class FastHead(Head):
    def __init__(self, plain: Head) -> None:
        """Takes its weights over."""
        nn.Module.__init__(self)
        self.config, self.modulation, self.proj = plain.config, plain.modulation, plain.proj

    def project(self, x_BFTD: Tensor, time_BFD: Tensor) -> Tensor:
        shift_FD, scale_FD = (self.modulation + time_BFD.unsqueeze(2)).flatten(0, 1).unbind(1)
        normed = add_norm(x_BFTD.flatten(0, 2), None, None, scale_FD, shift_FD, eps=self.config.eps, fp8=False)
        assert isinstance(normed, Tensor)
        cells: Tensor = self.proj(normed)
        return cells.unflatten(0, x_BFTD.shape[:3])
