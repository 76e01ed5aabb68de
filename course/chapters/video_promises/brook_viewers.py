"""Brook on this very machine: what a chunk takes is measured, and says how many viewers it may be promised
to."""

from __future__ import annotations

import time

import torch

from course.brook import brook
from course.chapters.video_few_steps.brook_steps import SHAPE, painted
from course.chapters.video_promises.how_many_fit import PICTURES, ask_until_full
from course.reader import Reader
from millstream.core.config import GIB, SPATIAL_STRIDE
from millstream.serving.admission_types import AdmissionConfig

PROMPT = "a large white boat drifting slowly on the sea at dawn in clear weather"


@torch.no_grad()
def run(reader: Reader, tries: int = 3) -> None:
    seconds = list[float]()
    for _ in range(1 + tries):
        begin = time.perf_counter()
        latents, _ = painted(PROMPT, 2, [])
        brook().vae.decode(latents)
        seconds.append(time.perf_counter() - begin)
    slowest = max(seconds[1:])
    side = SHAPE[-1] * SPATIAL_STRIDE
    reader.measured(
        f"a chunk of {side} x {side} takes {1e3 * min(seconds[1:]):.0f} to {1e3 * slowest:.0f} ms here"
    )
    for fps in (4.0, 8.0, 16.0):
        admitted, _ = ask_until_full(slowest, fps, AdmissionConfig(memory_bytes=64 * GIB))
        plays_s = PICTURES / fps
        viewers = admitted if slowest <= plays_s else 0
        reader.measured(
            f"at {fps:4.0f} pictures a second: {viewers:3} viewers, each chunk plays {plays_s:.2f} s"
        )
    reader.say("the same arithmetic for a GPU that is not here: millstream plan --sessions")
