"""Rows that a step learns from, made of clips. A row depends on the seed, the step and its own number, and on
nothing else: not on the number of ranks, on which of them asks for it, or on where a run was resumed.

Shapes: B rows, F latent frames, C latent channels, Y and X latent rows and columns, S text tokens, E text
width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from millstream.core.schedule import FULL
from millstream.train.finetune.dataset import ClipSet
from millstream.train.loop import keyed_generator
from millstream.train.noising import at_levels, chunk_levels, per_pixel
from millstream.train.options import Forcing
from millstream.train.parallel.task import FlowRows
from millstream.train.sequence import Layout, diffusion_forced, teacher_forced

HOST = torch.device("cpu")
"""Device on which rows are drawn, so that they are the same for every device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Noising:
    forcing: Forcing
    frames_per_chunk: int
    window: int
    shift: float
    drop: float
    noise: tuple[float, float] = (0.0, FULL)
    """Lowest and highest noise level."""

    def layout(self, frames: int) -> Layout:
        chunks = frames // self.frames_per_chunk
        if self.forcing == "teacher":
            return teacher_forced(range(chunks), self.frames_per_chunk, self.window)
        return diffusion_forced(chunks, self.frames_per_chunk, self.window)

    def levels(self, clean_BFCYX: Tensor, generator: torch.Generator) -> Tensor:
        """Draw noise levels, one a chunk [B, F]."""
        lowest, highest = self.noise
        return lowest + (highest - lowest) / FULL * chunk_levels(
            clean_BFCYX, self.frames_per_chunk, self.shift, generator
        )


class ClipRows:
    """Rows of every step of a run."""

    def __init__(self, clips: ClipSet, noising: Noising, *, batch: int, seed: int) -> None:
        self._clips = clips
        self._noising = noising
        self._batch = batch
        self._seed = seed

    def rows(self, step: int, numbers: Sequence[int]) -> FlowRows:
        """Return the rows with these numbers of a step's batch, in host memory."""
        order = step_clips(list(self._clips.buckets.values()), self._seed, self._batch, step)
        made = [
            self._row(order[number], keyed_generator(HOST, "row", self._seed, step, number))
            for number in numbers
        ]
        latents, level, text, target, *held = (torch.stack(parts) for parts in zip(*made, strict=True))
        rows = FlowRows(latents, level, text, target)
        return rows._replace(actions_BFA=held[0]) if held else rows

    def _row(self, clip: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        _, clean_FCYX, text_SE, actions_FA = self._clips[clip]
        clean = clean_FCYX[None]
        noise = torch.randn(clean.shape, generator=generator)
        level_BF = self._noising.levels(clean, generator)
        if float(torch.rand((), generator=generator)) < self._noising.drop:
            text_SE = self._clips.no_prompt_SE
        latents = at_levels(clean, noise, level_BF)
        target = noise - clean
        if (
            self._noising.forcing == "teacher"
        ):  # clean chunks come first, but for the last, which no later chunk sees
            past = clean[:, : -self._noising.frames_per_chunk]
            latents = torch.cat([past, latents], dim=1)
            level_BF = torch.cat([torch.zeros(past.shape[:2]), level_BF], dim=1)
            if actions_FA is not None:
                actions_FA = torch.cat([actions_FA[: past.shape[1]], actions_FA])
        held = () if actions_FA is None else (actions_FA,)
        return latents[0], level_BF[0], text_SE, target[0], *held


def step_clips(buckets: Sequence[Sequence[int]], seed: int, batch: int, step: int) -> list[int]:
    """Return the clips of a step's rows: all of one bucket."""
    bucket, turn = bucket_turn([len(clips) for clips in buckets], seed, step)
    return [
        buckets[bucket][place] for place in clip_order(len(buckets[bucket]), seed, batch, turn, bucket=bucket)
    ]


def bucket_turn(clips: Sequence[int], seed: int, step: int) -> tuple[int, int]:
    """Return the bucket of a step, and how many turns it has had before. Turns are shuffled in rounds, each
    as short as it can be with every bucket having turns in proportion to its clips."""
    whole = math.gcd(*clips)
    turns = torch.arange(len(clips)).repeat_interleave(torch.tensor(clips) // whole)
    rounds, place = divmod(step, len(turns))
    turns = turns[torch.randperm(len(turns), generator=keyed_generator(HOST, "bucket", seed, rounds))]
    bucket = int(turns[place])
    return bucket, rounds * (clips[bucket] // whole) + int((turns[:place] == bucket).sum())


def clip_order(clips: int, seed: int, batch: int, turn: int, *, bucket: int = 0) -> list[int]:
    """Return the clips of a bucket that one turn takes: all of them once, shuffled, then all of them again in
    another order."""
    assert min(clips, batch) >= 1, f"batches of {batch} from {clips} clips"
    rounds = range(turn * batch // clips, ((turn + 1) * batch - 1) // clips + 1)
    orders = [
        torch.randperm(clips, generator=keyed_generator(HOST, "order", seed, bucket, number))
        for number in rounds
    ]
    begin = turn * batch - rounds.start * clips
    return torch.cat(orders)[begin : begin + batch].tolist()


def flow_error(flow_BFCYX: Tensor, target_BFCYX: Tensor, weight_BF: Tensor | None = None) -> Tensor:
    """Return the squared error of the frames that are to be learnt, which come last."""
    squares = (flow_BFCYX[:, -target_BFCYX.shape[1] :] - target_BFCYX).square()
    return squares.mean() if weight_BF is None else (squares * per_pixel(weight_BF)).mean()
