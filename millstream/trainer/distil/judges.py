"""A teacher and a critic, who say where a student's pictures should have been.

Shapes: B rows, F frames, C latent channels, Y and X latent rows and columns, S text tokens, E text width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from millstream.parallel.training.learner import ModuleLearner
from millstream.parallel.training.predictor import Predictor
from millstream.parallel.training.states import ParameterState, Read
from millstream.parallel.training.task import FlowRows, LearntStep, MayStep
from millstream.trainer.distil.lessons import forced_flows
from millstream.trainer.methods.matching import StreamView, pulled
from millstream.trainer.noising import Noised
from millstream.trainer.rollout import guided_flow
from millstream.trainer.sequence import forced_input

CRITIC = "critic."
"""Before the names of its parameters."""


class Judged(NamedTuple):
    """Pictures as the judges see them."""

    clean_BFCYX: Tensor
    past_BFCYX: Tensor
    seen: Noised
    text_BSE: Tensor


class Judging(Protocol):
    def pull(self, judged: Judged, view: StreamView, guidance: float) -> Tensor:
        """Where the clean frames should have been."""

    def learn(self, judged: Judged, view: StreamView, may_step: MayStep) -> LearntStep:
        """The critic learns what the student paints."""

    def set_rate(self, lr: float) -> None: ...

    def states(self) -> Iterator[ParameterState]: ...

    def take(self, read: Read) -> None: ...


class Judges:
    """On the student's own ranks."""

    def __init__(self, teacher: Predictor, critic: ModuleLearner, no_prompt_SE: Tensor) -> None:
        self._teacher, self._critic, self._no_prompt_SE = teacher, critic, no_prompt_SE

    @torch.no_grad()
    def pull(self, judged: Judged, view: StreamView, guidance: float) -> Tensor:
        clean, past, seen, text = judged

        def flows(model: Predictor, text_BSE: Tensor) -> Tensor:
            return forced_flows(model, past, seen.noisy, seen.level_BF, text_BSE, view.sequence)

        without = flows(self._teacher, self._no_prompt_SE.to(text).expand_as(text))
        wanted = guided_flow(flows(self._teacher, text), without, guidance)
        return pulled(clean, seen, wanted, flows(self._critic.predictor, text), view.unjudged)

    def learn(self, judged: Judged, view: StreamView, may_step: MayStep) -> LearntStep:
        clean, past, seen, text = judged
        both, levels = forced_input(past, seen.noisy, seen.level_BF, view.sequence)
        rows = FlowRows(both, levels, text, seen.noise - clean, None, view.sequence)
        return self._critic.learn(rows, may_step)

    def set_rate(self, lr: float) -> None:
        self._critic.set_rate(lr)

    def states(self) -> Iterator[ParameterState]:
        for state in self._critic.states():
            yield ParameterState(CRITIC + state.name, state.tensors)

    def take(self, read: Read) -> None:
        self._critic.take(lambda name: read(CRITIC + name))
