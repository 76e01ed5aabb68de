"""Brook's files: the trained one that comes with the package, and what may lie beside any for CPUs.

`brook.safetensors` has `brook.int8.json`, the ranges of its activations, and `brook.decoder.safetensors`, its
thin decoder: `millstream train ranges` and `millstream train decoder` make them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

BUNDLED = "bundled"
"""Name of the bundled file for `--weights`."""
PATH = Path(__file__).parent / "brook.safetensors"
FINGERPRINT = "b3b65fbc4d597c9403cae119c3bc28a9"
"""Fingerprint that the bundled file must have."""


class Beside(NamedTuple):
    """Paths of the files that lie beside the weights; None where there is none."""

    ranges: Path | None = None
    thin_decoder: Path | None = None


NOTHING = Beside()


def ranges_path(weights: str) -> Path:
    return bundle_path(weights).with_suffix(".int8.json")


def thin_decoder_path(weights: str) -> Path:
    return bundle_path(weights).with_suffix(".decoder.safetensors")


def find_beside(weights: Sequence[str], loras: Sequence[tuple[str, float]] = ()) -> Beside:
    """A LoRA changes what activations are, not how latents are shown."""
    if len(weights) != 1:
        return Beside()
    ranges = ranges_path(weights[0])
    thin = thin_decoder_path(weights[0])
    return Beside(ranges if ranges.is_file() and not loras else None, thin if thin.is_file() else None)


def bundle_path(weights: str) -> Path:
    """Return the path of the file that `--weights` names."""
    return PATH if weights == BUNDLED else Path(weights)
