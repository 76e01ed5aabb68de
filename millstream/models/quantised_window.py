"""A ring's keys and values once more, in 8 bits, for attention below bf16.

Nothing of it is state: all of it follows from the ring's frames and is made anew whenever frames are placed,
so a session that is saved, moved, cut or brought back needs nothing of it. Between two placings only the
placed frames change, and with them their tiles. Knows no frames by number: the ring says where things are.
Shapes: B batch, L chunk tokens, W valid window tokens, N heads, H head width, R = layers * B.
"""

from __future__ import annotations

import torch
from torch import Tensor

from millstream.ops.quantise_kv import pack_runs
from millstream.ops.quantised_kv import QuantisedKV


class PackedWindow:
    """Packed keys and values of all layers of one ring."""

    def __init__(
        self,
        *,
        layers: int,
        batch: int,
        places: int,
        heads: int,
        head_width: int,
        tokens_per_frame: int,
        device: torch.device,
    ) -> None:
        self._batch = batch
        self._tokens_per_frame = tokens_per_frame
        self._all = QuantisedKV.room(layers * batch, places, heads, head_width, device=device)
        self._layers = [self._all.rows(slice(layer * batch, (layer + 1) * batch)) for layer in range(layers)]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._all.tensors)

    @property
    def address(self) -> int:
        """Address where it begins, which recordings of its use depend on."""
        return self._all.k_RWNH.data_ptr()

    def layer(self, layer: int) -> QuantisedKV:
        return self._layers[layer]

    def renew(self, k: Tensor, v: Tensor, past: int) -> None:
        """Pack all that [layers, B, W, N, H] hold. The means that are taken away are of the first `past`
        places: frames of this epoch, written before the ones that are placed now."""
        assert k.shape == v.shape, f"keys {tuple(k.shape)} and values {tuple(v.shape)}"
        assert 0 <= past <= k.shape[2], f"{past} places of the past among {k.shape[2]}"
        for mean_RNH, x in ((self._all.k_mean_RNH, k), (self._all.v_mean_RNH, v)):
            if past:
                mean_RNH.copy_(x[:, :, :past].mean(2, dtype=torch.float32).flatten(0, 1))
            else:
                mean_RNH.zero_()
        self._pack(k, v)

    def means(self) -> tuple[Tensor, Tensor]:
        """Return the means that are subtracted now: with the ring's frames, all that is needed to pack them
        to the same bits again."""
        return self._all.k_mean_RNH.clone(), self._all.v_mean_RNH.clone()

    def restore(self, k: Tensor, v: Tensor, means: tuple[Tensor, Tensor]) -> None:
        """Pack all that [layers, B, W, N, H] hold as it was when these were the means."""
        self._all.k_mean_RNH.copy_(means[0])
        self._all.v_mean_RNH.copy_(means[1])
        self._pack(k, v)

    def pack_placed(self, layer: int, k_BWNH: Tensor, v_BWNH: Tensor, index_L: Tensor) -> None:
        """Pack a layer's placed frames, whose tokens lie at `index`, after they were written."""
        pack_runs(
            self._layers[layer], k_BWNH, v_BWNH, index_L[:: self._tokens_per_frame], self._tokens_per_frame
        )

    def _pack(self, k: Tensor, v: Tensor) -> None:
        beginning = torch.zeros(1, dtype=torch.int64, device=k.device)
        pack_runs(self._all, k.flatten(0, 1), v.flatten(0, 1), beginning, k.shape[2])
