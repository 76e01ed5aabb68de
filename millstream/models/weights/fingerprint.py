"""One short string for all the weights of a model: equal weights, equal string, on any device.

Sums of the raw bits as 64-bit integers that wrap around, so the order of addition does not matter. The plain
sum moves with any changed bit, the sum weighted by position with any two elements swapped, the one weighted
by scrambled positions with larger rearrangements. Not a defence against forgery.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

_PIECE = 1 << 20
"""Elements at a time: with 64-bit copies, products and weights about 40 MiB of scratch."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ODD = (-0x61C8864680B583EB, -0x40A7B892E31B1A47)
"""Odd constants with well mixed bits."""


def fingerprint(modules: Mapping[str, nn.Module]) -> str:
    """Return the fingerprint of every parameter's name, shape, dtype and bits."""
    return fingerprint_of({part: records(part, module) for part, module in modules.items()})


def fingerprint_of(records_by_part: Mapping[str, bytes]) -> str:
    """Return the fingerprint from the parts' records, which may have been made on different machines."""
    return hashlib.blake2b(
        b"".join(records for _, records in sorted(records_by_part.items())), digest_size=16
    ).hexdigest()


class FingerprintRecorder:
    """Recorder of what a part adds to a fingerprint, from parameters that come one at a time: some 24 bytes
    for each million elements."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._found: dict[str, bytes] = {}
        self._weights: dict[torch.device, Tensor] = {}

    @torch.no_grad()
    def add(self, name: str, parameter: Tensor) -> None:
        head = f"{self._part}:{name}:{parameter.dtype}:{tuple(parameter.shape)};".encode()
        sums = _sums(parameter, self._weights_for(parameter))
        self._found[name] = head + sums.cpu().numpy().astype("<i8").tobytes()

    def records(self) -> bytes:
        return b"".join(found for _, found in sorted(self._found.items()))

    def _weights_for(self, parameter: Tensor) -> Tensor:
        """Return weights for as many elements as a piece of the parameter has, or more."""
        held = self._weights.get(parameter.device)
        count = min(parameter.numel(), _PIECE)
        if held is None or held.shape[1] < count:
            held = self._weights[parameter.device] = _position_weights(count, parameter.device)
        return held


def records(part: str, module: nn.Module) -> bytes:
    """Return the records of a whole module."""
    recorder = FingerprintRecorder(part)
    for name, parameter in module.named_parameters():
        recorder.add(name, parameter)
    return recorder.records()


def _sums(parameter: Tensor, weights: Tensor) -> Tensor:
    """Return three sums for each piece."""
    bits = parameter.reshape(-1).view(_BITS[parameter.element_size()])
    return torch.stack([_piece_sums(piece.to(torch.int64), weights) for piece in bits.split(_PIECE)])


def _piece_sums(piece: Tensor, weights: Tensor) -> Tensor:
    linear, scrambled = weights[:, : piece.numel()]
    return torch.stack([piece.sum(), (piece * linear).sum(), (piece * scrambled).sum()])


def _position_weights(count: int, device: torch.device) -> Tensor:
    position = torch.arange(1, count + 1, device=device)
    scrambled = position * _ODD[0]
    scrambled = (scrambled ^ (scrambled >> 29)) * _ODD[1]
    return torch.stack([position, scrambled ^ (scrambled >> 32)])
