"""A sequence in which everybody sees everybody. It trains well, and what it learnt cannot be streamed."""

from __future__ import annotations

import torch

from course.brook import CPU
from course.chapters.video_mask.small_dit import COLUMNS, CONFIG, ROWS, make_dit, make_latents, make_prompt
from course.reader import Reader
from millstream.train.sequence import ChunkedSequence, Layout, diffusion_forced, together

CHUNKS = 3
FRAMES = 2


@torch.no_grad()
def run(reader: Reader) -> None:
    leaking, causal = (
        _changed(layout) for layout in (together(CHUNKS * FRAMES), diffusion_forced(CHUNKS, FRAMES, 4))
    )
    reader.measured(
        f"other latents in the last chunk; the first chunk's flow changes by {leaking:.4f} where all see "
        "each other"
    )
    reader.say("symptom: none in training; in a stream the future that it looks at is not there yet")
    assert leaking > 1e-3, f"{leaking}"
    assert causal == 0.0, f"{causal}"
    reader.say(
        "tool: change the future and compare the past; under the block-causal layout it changes by "
        f"{causal:g}"
    )
    reader.say("fix: train with the mask that serving has")


def _changed(layout: Layout) -> float:
    """By how much the first chunk's flow depends on the last chunk."""
    dit = make_dit()
    latents = make_latents(CHUNKS * FRAMES)
    other = latents.clone()
    other[:, -FRAMES:] += 1.0
    sequence = ChunkedSequence(layout, CONFIG, (ROWS, COLUMNS), CPU)
    levels = torch.full((1, CHUNKS * FRAMES), 500.0)
    cross = dit.read_prompt(make_prompt())
    one, two = (dit(each, levels, sequence, cross)[:, :FRAMES] for each in (latents, other))
    return float((one - two).abs().max())
