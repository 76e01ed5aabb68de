"""A small picture of what a session would become: its next chunk under another prompt in one step, its last
latent frame alone.

Made on a hidden branch that is gone afterwards: the session itself goes on to the bits it would have had.
Shapes: B batch, T pixel frames, C channels, Y and X rows and columns; H height, W width, 3 is RGB.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from millstream.core.controls import Resume, SetPrompt, SetSteps
from millstream.core.errors import ControlError, EnvelopeRefused
from millstream.engine.engine import Engine
from millstream.ops.pixels import to_bytes
from millstream.session.forks import restart_at
from millstream.session.session import Session

HEIGHT = 96
"""At most."""


@torch.inference_mode()
def future_picture(engine: Engine, session: Session, control: SetPrompt) -> NDArray[np.uint8]:
    """[H, W, 3], by the small decoder where there is one. Between chunks; a paused session stays so."""
    parts = engine.parts
    with session.branch(restart_at(session), keeps_past=False) as branch:
        one = branch.timeline.steps[:1]
        for each in (Resume(), control, SetSteps(steps=one, first_steps=one)):
            branch.control(each)
        plan = branch.decide()
        if plan is None:
            raise ControlError("the session is about to stop")
        (delivery,) = parts.transport.post([branch.prepare(plan)]).result()
        if not delivery.result.ok or delivery.latents_out is None:
            raise EnvelopeRefused(delivery.result.error)
        with parts.stopwatch.span("decode"):
            pixels_BTCYX, _ = (engine.preview or parts.vae).decode(delivery.latents_out[:, -1:])
        parts.stopwatch.lap(plan.envelope)
    height, width = pixels_BTCYX.shape[-2:]
    size = min(HEIGHT, height), max(1, round(width * min(HEIGHT, height) / height))
    small = F.interpolate(pixels_BTCYX[:, -1].float(), size, mode="area")
    return np.ascontiguousarray(to_bytes(small[0]).permute(1, 2, 0).cpu().numpy())
