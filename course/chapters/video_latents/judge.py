"""Video chapter 1, what is asked of an answer."""

from __future__ import annotations

from types import ModuleType

import torch

from millstream.core.config import pixel_frames


def judge_latent_frames_hold_the_pictures_and_no_fewer_would(answer: ModuleType) -> None:
    """4 n - 3 pictures for n latent frames: solve for n, and round up."""
    for pictures in (1, 2, 5, 6, 9, 21, 81):
        found = answer.latent_frames(pictures)
        assert pixel_frames(0, found) >= pictures, (
            f"{found} latent frames hold {pixel_frames(0, found)} pictures"
        )
        assert found == 1 or pixel_frames(0, found - 1) < pictures, (
            f"{found} latent frames for {pictures} are too many"
        )


def judge_chunks_of_any_size_give_what_the_whole_gives(answer: ModuleType) -> None:
    """Put the tail in front, take windows of three, and keep the last two frames of what you made longer."""
    frames = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    whole = torch.stack(
        [torch.cat([torch.zeros(2, 3), frames])[place : place + 3].mean(dim=0) for place in range(7)]
    )
    for sizes in ([7], [3, 4], [1, 1, 2, 3]):
        tail = torch.zeros(2, 3)
        parts = []
        for chunk in frames.split(sizes):
            made, tail = answer.causal_mean(chunk, tail)
            parts.append(made)
        found = torch.cat(parts)
        assert found.shape == whole.shape, f"chunks of {sizes} gave {tuple(found.shape)}"
        assert torch.allclose(found, whole, atol=1e-6), (
            f"chunks of {sizes} are off by {float((found - whole).abs().max())}"
        )


def judge_a_tail_is_two_frames(answer: ModuleType) -> None:
    """Whatever the size of a chunk, what is handed on is of one size: that is why a stream needs no more
    memory later."""
    for frames in (1, 2, 5):
        _, tail = answer.causal_mean(torch.ones(frames, 3), torch.zeros(2, 3))
        assert tail.shape == (2, 3), f"after a chunk of {frames} the tail is {tuple(tail.shape)}"
