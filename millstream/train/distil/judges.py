"""A teacher and a critic, which say where a student's pictures should have been.

They are pulled to where the teacher thinks such pictures should be more than the critic, trained on the
student's own, does.

Shapes: B rows, F frames, C latent channels, Y and X latent rows and columns, S text tokens, E text width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from millstream.models.entries import NO_ENTRIES, Entries
from millstream.train.distil.training_rows import forced_flows
from millstream.train.noising import Noised, clean_estimate
from millstream.train.parallel.learner import ModuleLearner
from millstream.train.parallel.predictor import Predictor
from millstream.train.parallel.states import ParameterState, Read
from millstream.train.parallel.task import FlowRows, LearntStep, MayStep
from millstream.train.rollout import guided_flow
from millstream.train.sequence import ChunkedSequence, forced_input

CRITIC = "critic."
"""Prefix of the names of the critic's parameters."""
MARGIN = 0.02
"""Share of the range that the noise levels at which pictures are judged keep from both ends."""


@dataclass(frozen=True, slots=True)
class StreamView:
    """View of the last frames of a stream, as a network is shown them."""

    sequence: ChunkedSequence
    alike: int
    """Frames in a row that share a noise level."""
    unjudged: int = 0
    """Frames at its start that are shown and not judged."""


class Judged(NamedTuple):
    """Pictures as the judges are shown them."""

    clean_BFCYX: Tensor
    past_BFCYX: Tensor
    seen: Noised
    text_BSE: Tensor
    entries: Entries = NO_ENTRIES
    """Entries beside the frames of the past, the judged ones at its end."""


class Judging(Protocol):
    def pull(self, judged: Judged, view: StreamView, guidance: float) -> Tensor:
        """Return where the clean frames should have been."""

    def learn(self, judged: Judged, view: StreamView, may_step: MayStep) -> LearntStep:
        """Train the critic on what the student paints."""

    def set_rate(self, lr: float) -> None: ...

    def states(self) -> Iterator[ParameterState]: ...

    def load_state(self, read: Read) -> None: ...


class Judges:
    """On the student's own ranks."""

    def __init__(self, teacher: Predictor, critic: ModuleLearner, no_prompt_SE: Tensor) -> None:
        self._teacher = teacher
        self._critic = critic
        self._no_prompt_SE = no_prompt_SE

    @torch.no_grad()
    def pull(self, judged: Judged, view: StreamView, guidance: float) -> Tensor:
        clean, past, seen, text, entries = judged

        def flows(model: Predictor, text_BSE: Tensor) -> Tensor:
            return forced_flows(
                model, past, seen.noisy, seen.level_BF, text_BSE, view.sequence, entries=entries
            )

        without = flows(self._teacher, self._no_prompt_SE.to(text).expand_as(text))
        wanted = guided_flow(flows(self._teacher, text), without, guidance)
        return pulled(clean, seen, wanted, flows(self._critic.predictor, text), view.unjudged)

    def learn(self, judged: Judged, view: StreamView, may_step: MayStep) -> LearntStep:
        clean, past, seen, text, entries = judged
        both, levels = forced_input(past, seen.noisy, seen.level_BF, view.sequence)
        rows = FlowRows(
            both, levels, text, seen.noise - clean, None, view.sequence, view.sequence.entered(entries)
        )
        return self._critic.learn(rows, may_step)

    def set_rate(self, lr: float) -> None:
        self._critic.set_rate(lr)

    def states(self) -> Iterator[ParameterState]:
        for state in self._critic.states():
            yield ParameterState(CRITIC + state.name, state.tensors)

    def load_state(self, read: Read) -> None:
        self._critic.load_state(lambda name: read(CRITIC + name))


def pulled(mine: Tensor, seen: Noised, wanted: Tensor, found: Tensor, unjudged: int) -> Tensor:
    """Compute where frames should have been, from the flows that a teacher wants and a critic found in them
    with noise: moved by the difference, in proportion to how far the teacher is from them."""
    real, fake = (clean_estimate(seen.noisy, seen.level_BF, flow) for flow in (wanted, found))
    scale = (mine - real).abs().mean(dim=(1, 2, 3, 4), keepdim=True).clamp_min(1e-3)
    pull = (fake - real) / scale
    pull[:, :unjudged] = 0.0
    return mine - pull
