"""What may lie beside a Brook's weights for CPUs: `brook.safetensors` has `brook.int8.json`, the ranges of its activations, and
`brook.decoder.safetensors`, its thin decoder. `millstream train ranges` and `millstream train decoder` make them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from millstream.models.brook.bundled import BUNDLED, PATH


class Beside(NamedTuple):
    """Paths of what is there."""

    ranges: Path | None = None
    thin_decoder: Path | None = None


NOTHING = Beside()


def ranges_path(weights: str) -> Path:
    return _bundle(weights).with_suffix(".int8.json")


def thin_decoder_path(weights: str) -> Path:
    return _bundle(weights).with_suffix(".decoder.safetensors")


def find_beside(weights: Sequence[str], loras: Sequence[tuple[str, float]] = ()) -> Beside:
    """A LoRA changes what activations are, not how latents are shown."""
    if len(weights) != 1:
        return Beside()
    ranges, thin = ranges_path(weights[0]), thin_decoder_path(weights[0])
    return Beside(ranges if ranges.is_file() and not loras else None, thin if thin.is_file() else None)


def _bundle(weights: str) -> Path:
    return PATH if weights == BUNDLED else Path(weights)
