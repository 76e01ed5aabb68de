"""Options of each method in a recipe: plain data, checked when the recipe is read. Knows neither torch nor
stages."""

from __future__ import annotations

from typing import Literal

import msgspec

Forcing = Literal["teacher", "diffusion"]
"""Kind of chunks that a chunk learns after: clean ones (`teacher`) or noisy ones (`diffusion`)."""


GIVEN = 1
"""Latent frames that a still picture makes, which a stream begins from."""


class MethodOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all options; a method without any takes this."""


class VAEOptions(MethodOptions, frozen=True, kw_only=True):
    kl: float = 1e-4
    """Weight of the pull towards a unit normal."""
    edges: float = 1.0
    """Weight of the gradients' error."""


class FlowOptions(MethodOptions, frozen=True, kw_only=True):
    frames_per_chunk: int = 3
    window: int = 9
    forcing: Forcing = "teacher"
    noisy: tuple[int, ...] = ()
    """Numbers of the chunks that teacher forcing learns, some more often than others; all once if empty."""
    whole: bool = False
    """Learn a clip's last window too, as a whole, with teacher forcing."""
    shift: float = 3.0
    drop: float = 0.1
    """Share of the prompts that is left out."""
    first_frame: float = 0.0
    """Share of the batches whose chunks come after a clip's first latent frame, as a stream's do that begins
    from a picture. With teacher forcing."""
    thing_weight: float = 0.0
    """Additional weight of an error where a walk shows a thing: it covers few pixels, and is what is asked
    for."""


class ODEOptions(MethodOptions, frozen=True, kw_only=True):
    guidance: float = 2.5
    teacher_steps: int = 10
    shift: float = 3.0
    forcing: Forcing = "teacher"
    context_shift: float = 1.0
    """Shift of the noise levels of a noisy past; 1 draws all alike, less prefers low ones."""
    first_frame: float = 0.0
    """Share of the batches that come after a clip's first latent frame, as in `FlowOptions`."""
    frames_per_chunk: int = 3
    window: int = 9


class MatchingOptions(MethodOptions, frozen=True, kw_only=True):
    """Options of a student that is matched to its teacher's distribution, whatever it paints after."""

    guidance: float = 2.5
    shift: float = 3.0
    student_every: int = 2
    critic_first: int = 0
    """Steps that the critic learns alone: before it knows the student, its prediction is only the
    teacher's."""
    frames_per_chunk: int = 3
    window: int = 9


class DMDOptions(MatchingOptions, frozen=True, kw_only=True):
    forcing: Forcing = "teacher"
    context_shift: float = 1.0
    """Shift of the noise levels of a noisy past, as in `ODEOptions`."""


class SelfForcingOptions(MatchingOptions, frozen=True, kw_only=True):
    """Options of self-forcing. Batches that neither begin streams nor switch prompts continue streams."""

    begun: float = 0.25
    """Share of the batches that begins streams."""
    switched: float = 0.25
    """Share of the batches that switches prompts."""
    whole: float = 0.0
    """Share of the beginnings that is judged as a whole."""
    judges: Literal["both", "chunks", "whole"] = "both"
    """Kind of judgement that the teacher has learnt: chunks after clean ones, whole windows (a model that is
    not causal), or both."""
    longest: int = 4
    """Largest number of chunks by which streams go on; at least a window's worth."""
    streams: int = 512
    """Number of streams kept between steps."""
    renewed: float = 1.0
    """Share of newly begun streams that replace kept ones: the smaller, the older kept streams grow."""
    lasting_guidance: float | None = None
    """Guidance of streams that go on, if not the same: what makes a beginning clear makes later chunks too
    crisp."""
    first_frame: float = 0.0
    """Share of the beginnings that begin from a clip's first latent frame, as from a picture."""
    favoured: str = ""
    """Words whose prompts are drawn more often."""
    favoured_by: float = 3.0
    """Factor by which they are drawn more often."""


class ConsistencyOptions(MethodOptions, frozen=True, kw_only=True):
    consistency: Literal["discrete", "continuous"] = "discrete"
    """Distance of neighbours on the teacher's path: a step of the teacher, or infinitely near, by the
    derivative along the path."""
    guidance: float = 2.5
    teacher_steps: int = 20
    """Steps of a teacher's whole path, one of which neighbours are apart."""
    tangent_warm_up: int = 100
    """Steps over which a continuous student goes from the teacher's flow to the whole derivative."""
    shift: float = 3.0
    forcing: Forcing = "teacher"
    context_shift: float = 1.0
    frames_per_chunk: int = 3
    window: int = 9


OPTIONS: dict[str, type[MethodOptions]] = {
    "vae": VAEOptions,
    "flow": FlowOptions,
    "ode": ODEOptions,
    "dmd": DMDOptions,
    "self_forcing": SelfForcingOptions,
    "consistency": ConsistencyOptions,
    "classify": MethodOptions,
    "motion": MethodOptions,
}
