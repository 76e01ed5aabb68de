"""Video chapter 1, exercises. Fill in the functions, then run `millstream course check V1`."""

from __future__ import annotations

from torch import Tensor


def latent_frames(pictures: int) -> int:
    """Latent frames that hold at least so many pictures, from the start of an epoch: one, then four each."""
    raise NotImplementedError("latent_frames")


def causal_mean(frames_FC: Tensor, tail_2C: Tensor) -> tuple[Tensor, Tensor]:
    """Each frame becomes the mean of itself and the two before it; those before the first are in `tail_2C`.

    Returns what came out, and the tail for the next chunk. Chunks of one frame must work too.
    """
    raise NotImplementedError("causal_mean")
