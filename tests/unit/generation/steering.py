"""A stream that is steered by keys, a mouse, an axis and a camera, and what it comes to."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from millstream.core.controls import Cut, SetActions, SetCamera, SetPrompt
from millstream.engine.engine import Engine
from millstream.session.session import Session

SMALL: dict[str, Any] = dict(height=16, width=32, window=6)
TURN = math.radians(8)
TURNING = (math.cos(TURN), 0, math.sin(TURN), 0.2, 0, 1, 0, 0, -math.sin(TURN), 0, math.cos(TURN), 0.1)
WORLD: dict[str, Any] = dict(weights="random:3", device="cpu", dtype="float32")


@cache
def world_engine() -> Engine:
    return Engine("wan-tiny-world", **WORLD)


def steer(session: Session, shift: int = 0) -> None:
    """Ask for all of it over eight chunks, the first ones `shift` chunks later."""
    session.control(SetActions(keys=("w",), axes=(0.5,)), at_chunk=1 + shift)
    session.control(SetCamera(motion=TURNING, lens=(0.9, 1.4, 0.5, 0.5)), at_chunk=2 + shift)
    session.control(SetActions(tapped=("a",), look=(30.0, -10.0)), at_chunk=4)
    session.control(SetPrompt(prompt="rain", mode="recompute"), at_chunk=5)
    session.control(SetCamera(), at_chunk=6)
    session.control(Cut(), at_chunk=7)


def newest(session: Session) -> Tensor:
    return session._history._latents[max(session._history._latents)]


def steered(engine: Engine, chunks: int = 8, **stream: Any) -> Tensor:
    """The last latent frame of every chunk."""
    with engine.session("sea", seed=5, **SMALL, **stream) as session:
        steer(session)
        return torch.cat([newest(session) for _ in session.stream(chunks)])
