"""AdamW whose two moments are kept in eight bits a number: 2.03 bytes in the place of 8.

Numbers are taken in blocks of 256, each with its largest size as a scale. A code is the fourth root of a
number's share of that scale, in 127 levels with a sign (the first moment) or 255 (the second), so that codes
are close together near zero, where a second moment is divided by. Between two levels a number is rounded up
as often as it is near the upper one: without that a moment which changes by a hundredth in a step would stay
where it is for ever. Which way is a function of the step and the place, so a run goes on to the same bits.

A code is less than one level away: |decoded - x| <= 4 / levels * scale^(1/4) * max(|decoded|, |x|)^(3/4).
Shapes: N numbers, K blocks, E numbers of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from millstream.train.parallel.optimisers.own import OwnOptimiser

BLOCK = 256
SIGNED = 127
POSITIVE = 255
"""Levels above zero (`SIGNED` and `POSITIVE`)."""
LEVELS = {"exp_avg": SIGNED, "exp_avg_sq": POSITIVE}
AT_ONCE = 1 << 24
"""Numbers that are in float32 at a time: a whole number of blocks."""
NEAREST = 0.5


def encode(x_N: Tensor, levels: int, threshold: Tensor | float = NEAREST) -> tuple[Tensor, Tensor]:
    """Return codes, and a scale for each block. A number between two levels goes to the upper one if it is
    further between them than the threshold, [K, E] or one for all."""
    assert x_N.dim() == 1, f"numbers in {x_N.dim()} dimensions"
    assert levels in (SIGNED, POSITIVE), f"{levels} levels have no codes"
    x_KE = _in_blocks(x_N)
    scale_K1 = x_KE.abs().amax(dim=1, keepdim=True)
    size_KE = x_KE.abs() / scale_K1.clamp_min(torch.finfo(torch.float32).tiny)
    lower = (size_KE.sqrt().sqrt() * levels).floor().clamp(max=levels - 1)
    begin = (lower / levels) ** 4
    end = ((lower + 1) / levels) ** 4
    codes = lower + (size_KE - begin > threshold * (end - begin))
    if levels == POSITIVE:
        codes = torch.where(size_KE > 0, codes.clamp_min(1), codes).to(
            torch.uint8
        )  # what is divided by never vanishes
    else:
        codes = (codes * x_KE.sign()).to(torch.int8)
    return codes.flatten()[: len(x_N)].clone(), scale_K1.flatten()  # without the filling


def decode(codes_N: Tensor, scale_K: Tensor, levels: int) -> Tensor:
    assert len(scale_K) == -(-len(codes_N) // BLOCK), f"{len(scale_K)} scales for {len(codes_N)} codes"
    codes_KE = _in_blocks(codes_N.float())
    return (codes_KE.sign() * (codes_KE.abs() / levels) ** 4 * scale_K[:, None]).flatten()[: len(codes_N)]


def thresholds(first_block: int, blocks: int, step: float, device: torch.device) -> Tensor:
    """Return thresholds from 0 to 1, spread evenly over the steps of one number and over its neighbours."""
    block_K1 = (
        torch.arange(first_block, first_block + blocks, dtype=torch.float64, device=device)[:, None]
        * 0.6180339887
    )
    place_E = torch.arange(BLOCK, dtype=torch.float64, device=device) * 0.7548776662
    return ((block_K1 + place_E + step * 0.5698402910) % 1.0).float()


class PackedAdamW(OwnOptimiser):
    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(parameters, dict(lr=lr, weight_decay=weight_decay, betas=betas, eps=eps))

    def kept(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the state with moments in float32, held as the parameter is."""
        state = dict(self.state.get(parameter, {}))
        for kind, levels in LEVELS.items():
            if (codes := state.pop(_codes(kind), None)) is not None:
                state[kind] = _held_as(parameter, decode(codes, state.pop(_scale(kind)), levels))
        return state

    def load_state(self, parameter: nn.Parameter, weight: Tensor, state: Mapping[str, Tensor]) -> None:
        """Restore the state. Moments that were decoded from codes are encoded to the same codes again."""
        found = {kind: value for kind, value in state.items() if kind not in LEVELS}
        for kind, levels in LEVELS.items():
            found[_codes(kind)], found[_scale(kind)] = encode(_numbers(state[kind]), levels)
        self.state[parameter] = found

    def _update(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, _numbers(parameter.grad), group)

    def _step(self, parameter: nn.Parameter, gradient_N: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        weight_N = _numbers(parameter.detach())
        if not state:
            state["step"] = torch.tensor(0.0)
            for kind, levels in LEVELS.items():
                state[_codes(kind)], state[_scale(kind)] = encode(torch.zeros_like(weight_N), levels)
        state["step"] += 1
        for numbers, blocks in _slices(len(weight_N)):
            moments = {
                kind: decode(state[_codes(kind)][numbers], state[_scale(kind)][blocks], levels)
                for kind, levels in LEVELS.items()
            }
            _adamw(weight_N[numbers], gradient_N[numbers].float(), moments, float(state["step"]), group)
            chosen = thresholds(
                blocks.start, blocks.stop - blocks.start, float(state["step"]), weight_N.device
            )
            for kind, levels in LEVELS.items():
                state[_codes(kind)][numbers], state[_scale(kind)][blocks] = encode(
                    moments[kind], levels, chosen
                )


def _adamw(
    weight: Tensor, gradient: Tensor, moments: Mapping[str, Tensor], step: float, group: dict[str, Any]
) -> None:
    """Take an AdamW step in place, with the same formula as torch's."""
    (slow, slower), first, second = group["betas"], moments["exp_avg"], moments["exp_avg_sq"]
    first.lerp_(gradient, 1 - slow)
    second.mul_(slower).addcmul_(gradient, gradient, value=1 - slower)
    weight.mul_(1 - group["lr"] * group["weight_decay"])
    size = (second / (1 - slower**step)).sqrt_().add_(group["eps"])
    weight.addcdiv_(first, size, value=-group["lr"] / (1 - slow**step))


def _slices(count: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of the numbers, each with the slice of the blocks that they are in."""
    for begin in range(0, count, AT_ONCE):
        end = min(count, begin + AT_ONCE)
        yield slice(begin, end), slice(begin // BLOCK, -(-end // BLOCK))


def _in_blocks(x_N: Tensor) -> Tensor:
    filling = -len(x_N) % BLOCK
    return (
        nn.functional.pad(x_N, (0, filling)).unflatten(0, (-1, BLOCK))
        if len(x_N)
        else x_N.new_zeros(0, BLOCK)
    )


def _numbers(x: Tensor) -> Tensor:
    """Return the numbers of `x` that this rank holds, as one row that shares their memory."""
    return (x.to_local() if isinstance(x, DTensor) else x).view(-1)


def _held_as(parameter: Tensor, numbers: Tensor) -> Tensor:
    found = torch.empty_like(parameter, dtype=numbers.dtype)
    _numbers(found).copy_(numbers)
    return found


def _codes(kind: str) -> str:
    return f"{kind}_codes"


def _scale(kind: str) -> str:
    return f"{kind}_scale"
