"""The whole sequence under the mask, then chunk by chunk through a ring: the same flows. And the ring never
grows."""

from __future__ import annotations

import torch

from course.brook import CPU
from course.chapters.video_mask.small_dit import (
    COLUMNS,
    CONFIG,
    ROWS,
    make_dit,
    make_latents,
    make_prompt,
    make_ring,
)
from course.reader import Reader
from millstream.train.sequence import ChunkedSequence, diffusion_forced

FRAMES = 2
WINDOW = 4


@torch.no_grad()
def run(reader: Reader, chunks: int = 5) -> None:
    dit = make_dit()
    latents = make_latents(chunks * FRAMES)
    levels = torch.linspace(900, 100, chunks).repeat_interleave(FRAMES)[None]
    cross = dit.read_prompt(make_prompt())
    sequence = ChunkedSequence(diffusion_forced(chunks, FRAMES, WINDOW), CONFIG, (ROWS, COLUMNS), CPU)
    whole = dit(latents, levels, sequence, cross)
    guess = reader.predict(
        f"a ring of {WINDOW} frames, chunks of {FRAMES}. Which frame does frame {2 * FRAMES} overwrite?"
    )
    reader.reveal(guess, 0, by="the oldest")
    ring = make_ring(WINDOW)
    sizes = set[int]()
    for chunk in range(chunks):
        frames = slice(chunk * FRAMES, (chunk + 1) * FRAMES)
        ring.place(list(range(frames.start, frames.stop)))
        flow = dit(latents[:, frames], levels[:, frames], ring, cross)
        error = float((flow - whole[:, frames]).abs().max())
        assert error < 1e-4, f"chunk {chunk} differs by {error}"
        sizes.add(ring.num_bytes)
        reader.say(
            f"chunk {chunk}: slots hold frames {' '.join(f'{frame:2}' for frame in ring.slots.frames)}"
        )
    assert len(sizes) == 1, f"the ring had {sizes} bytes"
    reader.say(
        f"all {chunks} chunks have the flows of the whole sequence, within 1e-4; the ring has {sizes.pop()} "
        "bytes throughout"
    )
