"""vLLM-Omni's camera events as the motion of ours: a translation and a unit quaternion for each latent
frame.

Theirs has y up, ours down, so what turns about x or z turns the other way.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec

from millstream.core.client_messages import ProtocolError
from millstream.core.controls import SetCamera

UNIT_ERROR = 1e-3
"""Largest distance of a quaternion's length from 1."""


class CameraData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    translation: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """To the right, up and forward."""
    rotation: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 1.0)
    """x, y, z, w"""


class CameraEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["target", "velocity"] = "target"
    data: CameraData


class MultiModalData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    camera: CameraEvent


class CameraInteraction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    multi_modal_data: MultiModalData


class CameraAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    event: CameraInteraction
    event_id: str | None = None
    transition_chunks: Annotated[int, msgspec.Meta(ge=0)] | None = None


def camera_of(event: CameraEvent, event_id: str) -> SetCamera:
    """Return the motion of a velocity. Raises where it is none."""
    if event.mode != "velocity":
        raise ProtocolError(
            "bad_control", 'the camera is moved by its velocity here; send "mode": "velocity"'
        )
    x, y, z, w = event.data.rotation
    if not abs(math.hypot(x, y, z, w) - 1) <= UNIT_ERROR:
        raise ProtocolError("bad_control", "the camera's rotation must be a unit quaternion, [x, y, z, w]")
    x = -x
    z = -z
    right, up, forward = event.data.translation
    motion = (
        *(1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w), right),
        *(2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w), -up),
        *(2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y), forward),
    )
    return SetCamera(id=event_id, motion=motion)
