"""From step lists to noise levels: plain arithmetic of flow matching.

A level is what the model is told, 0 (clean) to 1000 (noise); level / 1000 is the share of noise in the
latents.
"""

from __future__ import annotations

FULL = 1000.0


def even_steps(count: int) -> tuple[float, ...]:
    """So many noise levels, evenly spaced from pure noise."""
    return tuple(FULL * (count - step) / count for step in range(count))


def noise_levels(steps: tuple[float, ...], *, shift: float, warp: bool) -> tuple[float, ...]:
    """The levels that `steps` stand for. Warping moves them towards noise, as the training schedule did."""
    return (
        tuple(FULL * shifted(step / FULL, shift) for step in steps)
        if warp
        else tuple(float(step) for step in steps)
    )


def shifted(share: float, shift: float) -> float:
    """A position on the unshifted schedule to its share of noise."""
    return shift * share / (1.0 + (shift - 1.0) * share)


def start_at(levels: tuple[float, ...], noise_scale: float) -> tuple[float, ...]:
    """Return the descent begun at `noise_scale`: that level first, then all the lower ones."""
    assert 0 <= noise_scale <= 1, f"a share of noise is 0 to 1, got {noise_scale}"
    top = FULL * noise_scale
    return (top, *(level for level in levels if level < top))
