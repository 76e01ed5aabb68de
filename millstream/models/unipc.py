"""UniPC on a flow: a multistep solver of order 2 that predicts the next noise level from the last two clean
estimates, and corrects that once it has the next (Zhao et al. 2023, the variant with B(h) = exp(h) - 1).

A chunk has a solver of its own and begins it anew. Its coefficients are plain numbers; the latents of one
chunk are all that it holds. Latents at a share s of noise are (1 - s) of the clean ones and s of the noise.
Shapes: B batch, F frames, C channels, Y and X latent rows and columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from millstream.core.schedule import FULL

MOST_NOISE = 1.0 - 1e-6
"""Share that pure noise counts as: at 1 there is no signal, and its logarithm is infinite."""


@dataclass(frozen=True, slots=True)
class _Passed:
    """A level that was passed: what the model was shown there, corrected, and its clean estimate."""

    share: float
    shown_BFCYX: Tensor
    clean_BFCYX: Tensor


class UniPC:
    """Solve one chunk's descent through `levels`, high to low."""

    def __init__(self, levels: tuple[float, ...]) -> None:
        self._shares = [min(level / FULL, MOST_NOISE) for level in levels]
        self._passed: list[_Passed] = []
        """The last two levels."""
        self._step = 0

    def advance(self, shown_BFCYX: Tensor, clean_BFCYX: Tensor) -> Tensor:
        """Return what the model is shown at the next level, from what it was shown at this one and what it
        makes of that."""
        assert self._step + 1 < len(self._shares), f"{len(self._shares)} levels, and one more is asked for"
        share = self._shares[self._step]
        shown = shown_BFCYX if not self._passed else self._corrected(share, clean_BFCYX)
        self._passed = [*self._passed[-1:], _Passed(share, shown, clean_BFCYX)]
        self._step += 1
        return self._predicted(self._shares[self._step])

    def _predicted(self, share: float) -> Tensor:
        """Go on from the last level with the slope of the last two estimates, where there are two."""
        last = self._passed[-1]
        h = _log_ratio(share) - _log_ratio(last.share)
        grown = math.expm1(-h)
        there = _moved(last, share, grown)
        if len(self._passed) == 1:
            return there
        ratio, difference = self._slope(h)
        return there - (1.0 - share) * grown * 0.5 * difference / ratio

    def _corrected(self, share: float, clean_BFCYX: Tensor) -> Tensor:
        """Make the last prediction again, now that the estimate at its end is known."""
        last = self._passed[-1]
        h = _log_ratio(share) - _log_ratio(last.share)
        grown = math.expm1(-h)
        there = _moved(last, share, grown)
        change = clean_BFCYX - last.clean_BFCYX
        if len(self._passed) == 1:
            return there - (1.0 - share) * grown * 0.5 * change
        ratio, difference = self._slope(h)
        # Two weights that make the formula exact for estimates of degree 1 and 2: [1 1; ratio 1] w = b.
        first = (grown / -h - 1.0) / grown
        second = 2.0 * ((grown / -h - 1.0) / -h - 0.5) / grown
        old = (second - first) / (ratio - 1.0)
        new = first - old
        return there - (1.0 - share) * grown * (old * difference / ratio + new * change)

    def _slope(self, h: float) -> tuple[float, Tensor]:
        """Return how far back the level before the last lies, in steps of `h`, and how the estimates
        differ."""
        before, last = self._passed
        return (_log_ratio(before.share) - _log_ratio(last.share)) / h, before.clean_BFCYX - last.clean_BFCYX


def _moved(last: _Passed, share: float, grown: float) -> Tensor:
    """Latents at another level, if the estimate stayed as it is."""
    return share / last.share * last.shown_BFCYX - (1.0 - share) * grown * last.clean_BFCYX


def _log_ratio(share: float) -> float:
    """Logarithm of signal over noise."""
    return math.log1p(-share) - math.log(share)
