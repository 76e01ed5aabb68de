"""A pipeline of layers that learns: parts of a DiT one after the other, driven by torch's schedules.

What every part needs besides activations (noise levels, text) travels with them, so that its gradients come
back the same way. The first part embeds and the last predicts. Two parts a rank, in loops or in a V, shorten
the time in which ranks wait.
Shapes: B batch, F frames, T tokens a frame, D width, S text tokens, C latent channels, Y and X latent rows
and columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from millstream.models.dit import BlockStack, CausalDiT, prompt_of_blocks
from millstream.models.kv import Memory
from millstream.models.weights.unread import bring
from millstream.parallel.apply import even_bounds
from millstream.parallel.collectives import RankGroup
from millstream.train.parallel.plan import ParallelPlan, Schedule
from millstream.train.parallel.precision import Precision, in_precision

_IN_BLOCK = re.compile(r"^blocks\.(\d+)\.")
SCHEDULES: dict[Schedule, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
}


class DiTPart(CausalDiT):
    """Some of a DiT's layers, and what comes before the first or after the last of them."""

    def __init__(
        self,
        dit: CausalDiT,
        layers: range,
        sequence: Memory,
        latent_size: tuple[int, int],
        precision: Precision = "fp32",
    ) -> None:
        nn.Module.__init__(self)
        self._precision: Precision = precision
        self.config = dit.config
        self._first_layer = layers.start
        self._sequence = sequence
        self._grid = latent_size[0] // dit.config.patch, latent_size[1] // dit.config.patch
        self.is_first = layers.start == 0
        self.is_last = layers.stop == len(dit.blocks)
        self.blocks = BlockStack(list(dit.blocks)[layers.start : layers.stop])
        if self.is_first:
            self.patch_in = dit.patch_in
            self.text_in = dit.text_in
            self.time_in = dit.time_in
            self.time_out = dit.time_out
        if self.is_last:
            self.head = dit.head

    def forward(self, *given: Tensor) -> tuple[Tensor, ...] | Tensor:  # type: ignore[override]
        """Latents, levels and text to the first part; activations and what travels with them to the
        others."""
        with in_precision(self._precision, given[0].device):
            return self._called(*given)

    def _called(self, *given: Tensor) -> tuple[Tensor, ...] | Tensor:
        x_BFTD, time_BFD, levels_BF6D, text_BSD = self._embedded(*given) if self.is_first else given
        x_BFTD = self.blocks(x_BFTD, levels_BF6D, self._sequence, prompt_of_blocks(self.blocks, text_BSD))
        if self.is_last:
            flow: Tensor = self.head(x_BFTD, time_BFD, self._grid)
            return flow
        return x_BFTD, time_BFD, levels_BF6D, text_BSD

    def learning(self) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters that learn, by their names in the whole DiT."""
        learning = [named for named in self.named_parameters() if named[1].requires_grad]
        return [(_IN_BLOCK.sub(self._whole_name, name), parameter) for name, parameter in learning]

    def _embedded(self, latents_BFCYX: Tensor, level_BF: Tensor, text_BSE: Tensor) -> tuple[Tensor, ...]:
        x_BFTD, time_BFD, levels_BF6D, _ = self.embed(latents_BFCYX, level_BF)
        return x_BFTD, time_BFD, levels_BF6D, self.text_in(text_BSE)

    def _whole_name(self, found: re.Match[str]) -> str:
        return f"blocks.{int(found[1]) + self._first_layer}."


class LayerPipeline:
    """This rank's parts, and the schedule that all ranks of the pipeline follow."""

    def __init__(
        self,
        dit: CausalDiT,
        sequence: Memory,
        plan: ParallelPlan,
        group: RankGroup,
        *,
        latent_size: tuple[int, int],
        loss: Callable[[Tensor, Tensor], Tensor],
        precision: Precision = "fp32",
    ) -> None:
        """Takes `dit` apart. `loss` judges the flow of one micro-batch and is a mean over its rows."""
        count = plan.pp * plan.parts_per_rank
        bounds = even_bounds(len(dit.blocks), count)
        device = dit.patch_in.weight.device
        numbers = part_numbers(plan, group.place)
        assert group.handle is not None, "a pipeline has more than one rank"
        self.parts = {
            n: DiTPart(dit, range(bounds[n], bounds[n + 1]), sequence, latent_size, precision)
            for n in numbers
        }
        bring(parameter for part in self.parts.values() for parameter in part.parameters())
        stages = [PipelineStage(part, n, count, device, group=group.handle) for n, part in self.parts.items()]
        given = stages if plan.parts_per_rank > 1 else stages[0]
        self._schedule = SCHEDULES[plan.schedule](given, plan.micro_batches, loss_fn=loss)
        self.module = nn.ModuleDict({str(n): part for n, part in self.parts.items()})
        self._is_first = 0 in self.parts
        self._is_last = count - 1 in self.parts

    def backward(self, given: Sequence[Tensor], target: Tensor) -> Tensor | None:
        """Forward and backward passes of all micro-batches. The mean loss, on the rank that has the last
        part."""
        losses = list[Tensor]()
        wanted: dict[str, Any] = dict(target=target, losses=losses) if self._is_last else {}
        self._schedule.step(*(given if self._is_first else ()), **wanted)
        return torch.stack(losses).mean().detach() if losses else None


def part_numbers(plan: ParallelPlan, place: int) -> tuple[int, ...]:
    """Which parts a rank has: one, one from each loop, or one on each side of a V."""
    if plan.parts_per_rank == 1:
        return (place,)
    return place, (2 * plan.pp - 1 - place if plan.schedule == "zbv" else plan.pp + place)
