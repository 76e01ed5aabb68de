"""What a recipe may choose of each method: plain data, checked when the recipe is read. Knows neither torch nor stages."""

from __future__ import annotations

from typing import Literal

import msgspec

Forcing = Literal["teacher", "diffusion"]
"""Whether a chunk learns with clean ones before it or with noisy ones."""


class MethodOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A method that leaves nothing open takes these as they are."""


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
    """Whether teacher forcing learns a clip's last window too, as one."""
    shift: float = 3.0
    drop: float = 0.1
    """Share of the prompts that is left out."""


class ODEOptions(MethodOptions, frozen=True, kw_only=True):
    guidance: float = 2.5
    teacher_steps: int = 10
    shift: float = 3.0
    forcing: Forcing = "teacher"
    context_shift: float = 1.0
    """Of the noise levels of a noisy past; 1 draws all alike, less prefers low ones."""
    frames_per_chunk: int = 3
    window: int = 9


class MatchingOptions(MethodOptions, frozen=True, kw_only=True):
    """Of a student that is matched to its teacher's distribution, whatever it paints after."""

    guidance: float = 2.5
    shift: float = 3.0
    student_every: int = 2
    critic_first: int = 0
    """Steps the critic learns alone: before it knows the student its opinion is only the teacher's."""
    frames_per_chunk: int = 3
    window: int = 9


class DMDOptions(MatchingOptions, frozen=True, kw_only=True):
    forcing: Forcing = "teacher"
    context_shift: float = 1.0
    """As of an initialisation."""


class SelfForcingOptions(MatchingOptions, frozen=True, kw_only=True):
    """What of the batches neither begins streams nor switches prompts goes on."""

    begun: float = 0.25
    """Share of the batches that begins streams."""
    switched: float = 0.25
    """Share of the batches that switches prompts."""
    whole: float = 0.0
    """Share of the beginnings that is judged as a whole."""
    judges: Literal["both", "chunks", "whole"] = "both"
    """What the teacher has learnt to judge: chunks after clean ones, whole windows (a model that is not causal), or both."""
    longest: int = 4
    """Chunks by which streams go on, at most; at least a window's worth."""
    streams: int = 512
    """Kept between steps."""
    renewed: float = 1.0
    """Share of the streams that begin that takes the place of kept ones: the less, the older they grow."""
    lasting_guidance: float | None = None
    """That of streams that go on, if not the same: what makes a beginning clear makes what lasts too crisp."""
    favoured: str = ""
    """Words: prompts that say one of them are drawn more often."""
    favoured_by: float = 3.0
    """How many times as often."""


class ConsistencyOptions(MethodOptions, frozen=True, kw_only=True):
    consistency: Literal["discrete", "continuous"] = "discrete"
    """Whether neighbours are a step of the teacher apart, or infinitely near: then by the derivative along its path."""
    guidance: float = 2.5
    teacher_steps: int = 20
    """Of a teacher's whole path, one of which neighbours are apart."""
    tangent_warm_up: int = 100
    """Steps over which a continuous one comes from the teacher's flow to the whole derivative."""
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
}
