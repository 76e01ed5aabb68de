"""Somebody decodes every chunk from an empty state. Pictures are missing, and those after the seam are
wrong."""

from __future__ import annotations

import torch

from course.brook import brook
from course.chapters.video_latents.causal_tails import CHUNK, CHUNKS, some_latents, streamed
from course.reader import Reader


@torch.no_grad()
def run(reader: Reader) -> None:
    latents = some_latents()
    right = streamed(latents)[0]
    wrong = [brook().vae.decode(chunk)[0] for chunk in latents.split(CHUNK, dim=1)]
    counts = [sum(part.shape[1] for part in parts) for parts in (right, wrong)]
    assert counts == [12 * CHUNKS - 3, 9 * CHUNKS], f"{counts}"
    reader.say(
        f"symptom: {counts[1]} pictures instead of {counts[0]}: a state that is empty begins an epoch, whose "
        "first is one"
    )
    missing = right[1].shape[1] - wrong[1].shape[1]
    off = (wrong[1] - right[1][:, missing:]).abs().mean(dim=(0, 2, 3, 4))
    reader.measured(
        f"of the second chunk the first picture is off by {off[0]:.3f}, the last by {off[-1]:.3f}"
    )
    assert float(off[0]) > 10 * float(off[-1]), f"{off.tolist()}"
    reader.say("tool: count pictures; core.config.pixel_frames says how many a chunk must give")
    reader.say(
        "fix: hand every chunk the tails of the one before; a cut, which begins an epoch, is the only empty state"
    )
