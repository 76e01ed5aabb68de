"""Distribution matching: a student's pictures are pulled to where the teacher thinks such pictures should be more than a
critic, trained on the student's own, thinks they are.

Knows no streams: whoever has a student paint says what it was shown and how its pictures are judged.
Shapes: B batch, F frames, C latent channels, Y and X latent rows and columns, S text tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from millstream.models.brook.text import PAD
from millstream.models.dit import CausalDiT, CrossKV
from millstream.ops.precision import mixed_precision
from millstream.parallel.training.recompute import compiled_pass
from millstream.trainer.loop import LossTurn
from millstream.trainer.methods.flow import TextAndDiT
from millstream.trainer.noising import Noised, clean_estimate, noised
from millstream.trainer.options import MatchingOptions
from millstream.trainer.rollout import guided_flow
from millstream.trainer.sequence import ChunkedSequence, forced_flow
from millstream.trainer.share import ALONE, BatchShare

MARGIN = 0.02
"""Of the noise levels that pictures are judged at, from both ends."""


@dataclass(frozen=True, slots=True)
class StreamView:
    """How a network is shown the last frames of a stream."""

    sequence: ChunkedSequence
    alike: int
    """Frames in a row that share a noise level."""
    unjudged: int = 0
    """Frames at its start that are shown and not judged."""

    def flows(
        self,
        dit: Callable[..., Tensor],
        past: Tensor,
        noisy: Tensor,
        level_BF: Tensor,
        cross: CrossKV,
        past_BF: Tensor | None = None,
    ) -> Tensor:
        return forced_flow(dit, past, noisy, level_BF, self.sequence, cross, past_BF)


@dataclass(frozen=True, kw_only=True, slots=True)
class Painted:
    """Chunks a student painted without gradients, and what it takes to paint one step of each again with them."""

    text: Tensor
    past: Tensor
    """[B, F, C, Y, X], clean, from its first frame on; of what follows nothing is looked at."""
    starts: Tensor
    """What one step of each chunk started from."""
    level_BF: Tensor
    """The noise level of that step."""
    made: StreamView
    """How the student saw it."""
    pictures: Tensor
    """What came out."""
    judged: StreamView
    """How teacher and critic see it, given the past as it is."""
    guidance: float
    shown: tuple[Tensor, Tensor] | None = None
    """The past as the student saw it, and its noise levels [B, F], where it was not the clean one."""


class Matching:
    def __init__(
        self,
        student: TextAndDiT,
        teacher: TextAndDiT,
        critic: CausalDiT,
        *,
        options: MatchingOptions,
        tokens: int,
        compiled: bool = False,
        share: BatchShare = ALONE,
    ) -> None:
        """`tokens` is how many an empty prompt has."""
        self._student, self._teacher, self._critic = student, teacher, critic
        roles = student.dit, teacher.dit, critic
        self._passes = {dit: compiled_pass(dit) if compiled else dit for dit in roles}
        self._options, self._tokens, self._share = options, tokens, share

    def turns(
        self, paint: Callable[[torch.Generator], Painted], carries: Mapping[str, Tensor] = MappingProxyType({})
    ) -> tuple[LossTurn, LossTurn]:
        """The student's and the critic's, each on what is painted for it; the student `carries` what painting keeps."""

        def student(generator: torch.Generator) -> dict[str, Tensor]:
            return self.student_losses(paint(generator), generator)

        def critic(generator: torch.Generator) -> dict[str, Tensor]:
            return self.critic_losses(paint(generator), generator)

        every, after = self._options.student_every, self._options.critic_first
        return (
            LossTurn("student", self._student.dit, student, every=every, after=after, carries=carries),
            LossTurn("critic", self._critic, critic),
        )

    def student_losses(self, painted: Painted, generator: torch.Generator) -> dict[str, Tensor]:
        with mixed_precision(painted.text.device):
            cross, (past, past_BF) = self._student.dit.read_prompt(painted.text), painted.shown or (painted.past, None)
            flow = self._flows(self._student.dit, painted.made, past, painted.starts, painted.level_BF, cross, past_BF)
            mine = clean_estimate(painted.starts, painted.level_BF, flow)
            target = self.pull(mine.detach(), painted, generator)
        return {"match": 0.5 * (mine - target).square().mean()}

    def critic_losses(self, painted: Painted, generator: torch.Generator) -> dict[str, Tensor]:
        """The critic learns the flow of what the student paints."""
        noisy, noise, level = self.noised(painted.pictures, painted.judged, generator)
        with mixed_precision(painted.text.device):
            cross = self._critic.read_prompt(painted.text)
            flow = self._flows(self._critic, painted.judged, painted.past, noisy, level, cross)
        return {"critic": (flow - (noise - painted.pictures)).square().mean()}

    @torch.no_grad()
    def pull(self, mine: Tensor, painted: Painted, generator: torch.Generator) -> Tensor:
        """Where the student should have been: moved by the difference between what teacher and critic see in it."""
        view = painted.judged
        seen = self.noised(mine, view, generator)
        empty = self._student.text(torch.full((len(mine), self._tokens), PAD, device=mine.device))

        def flows(dit: CausalDiT, text: Tensor) -> Tensor:
            return self._flows(dit, view, painted.past, seen.noisy, seen.level_BF, dit.read_prompt(text))

        without = flows(self._teacher.dit, empty)
        wanted = guided_flow(flows(self._teacher.dit, painted.text), without, painted.guidance)
        return pulled(mine, seen, wanted, flows(self._critic, painted.text), view.unjudged)

    def _flows(self, dit: CausalDiT, view: StreamView, *shown: Any) -> Tensor:
        return view.flows(self._passes[dit], *shown)

    def noised(self, clean: Tensor, view: StreamView, generator: torch.Generator) -> Noised:
        """At the levels a view is judged at."""
        return noised(clean, view.alike, self._options.shift, generator, margin=MARGIN, share=self._share)


def pulled(mine: Tensor, seen: Noised, wanted: Tensor, found: Tensor, unjudged: int) -> Tensor:
    """Where pictures should have been, from the flows that a teacher wants and a critic found in them with noise: moved by the
    difference, in proportion to how far the teacher is from them."""
    real, fake = (clean_estimate(seen.noisy, seen.level_BF, flow) for flow in (wanted, found))
    scale = (mine - real).abs().mean(dim=(1, 2, 3, 4), keepdim=True).clamp_min(1e-3)
    pull = (fake - real) / scale
    pull[:, :unjudged] = 0.0
    return mine - pull
