"""Conditions: what steers a chunk besides words. A picture to begin from, keys, a camera.

Plain data, one record a latent frame, carried by the envelope: what is not written there does not happen.
How a model takes it in is `models/conditions/`; what a client sends are the controls in `core/controls.py`.
Knows no tensors and no picture files.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from typing import Literal

import msgspec

from millstream.core.errors import ControlError

MAX_KEYS = 16
"""Most keys that are held at a time; a hand has five fingers, a gamepad seventeen buttons."""
MAX_KEY_LETTERS = 16
MAX_AXES = 8
MAX_TURN = 180.0
"""Most degrees that the view turns by within one chunk, to each side."""
MAX_STEP = 100.0
"""Farthest that a camera moves within one latent frame, in the model's units of length."""
ROTATION_ERROR = 1e-3
"""Largest distance of a rotation's rows from orthonormal."""
MAX_PICTURE_FRAMES = 4096
MAX_PICTURE_BYTES = 16 * 2**20
"""Most bytes of pictures, as they are packed, that wait in a session: they are part of what is saved of it."""
STILL: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0)
"""The motion of a camera that stands still."""

ImageMode = Literal["cut", "blend"]


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Frames to begin from, of exactly the stream's size: one, or the end of a clip."""

    height: int
    width: int
    num_frames: int = 1
    rgb: bytes
    """[num_frames, height, width, 3] bytes, packed by zlib."""

    @classmethod
    def of(cls, pixels: bytes, *, height: int, width: int, num_frames: int = 1) -> Picture:
        """Pack frames as they lie in memory."""
        assert len(pixels) == num_frames * height * width * 3, (
            f"{len(pixels)} bytes are not {num_frames} frames of {height}x{width}"
        )
        return cls(height=height, width=width, num_frames=num_frames, rgb=zlib.compress(pixels, 3))

    @property
    def num_bytes(self) -> int:
        """Bytes of its frames, unpacked."""
        return self.num_frames * self.height * self.width * 3

    @property
    def digest(self) -> str:
        """Name of what it shows: equal pictures, equal digests."""
        head = f"{self.num_frames}x{self.height}x{self.width}".encode()
        return hashlib.blake2b(head + self.pixels(), digest_size=16).hexdigest()

    def pixels(self) -> bytes:
        """Unpack the frames. Never makes more bytes than the size says."""
        unpacker = zlib.decompressobj()
        try:
            pixels = unpacker.decompress(self.rgb, self.num_bytes + 1)
        except zlib.error:
            raise ControlError("the picture's bytes are not packed by zlib") from None
        if len(pixels) != self.num_bytes or not unpacker.eof:
            raise ControlError(
                f"the picture's bytes are not {self.num_frames} frames of {self.height}x{self.width}"
            )
        return pixels

    def check(self) -> None:
        if not (1 <= self.num_frames <= MAX_PICTURE_FRAMES and self.height > 0 and self.width > 0):
            raise ControlError(f"a picture of {self.num_frames} x {self.height}x{self.width} cannot be")
        if len(self.rgb) > MAX_PICTURE_BYTES:
            raise ControlError(
                f"{self.num_frames} frames of {self.height}x{self.width} are {len(self.rgb)} bytes, more than "
                f"{MAX_PICTURE_BYTES}; take a shorter end of the clip"
            )


class FrameActions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Input from keys, mouse and gamepad during one latent frame."""

    keys: tuple[str, ...] = ()
    """Names of the keys that are held, sorted: `a`, `left`, `space`, `w`."""
    look: tuple[float, float] = (0.0, 0.0)
    """Degrees that the view turns by during the frame, to the right and down."""
    axes: tuple[float, ...] = ()
    """Positions of a gamepad's axes, -1 to 1."""

    def check(self) -> None:
        check_keys(self.keys)
        check_look(self.look)
        check_axes(self.axes)


class CameraMotion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Motion of a camera from the latent frame before to this one, and its lens."""

    motion: tuple[float, ...] = STILL
    """Rotation and translation, [R|t] row by row, camera to camera; x to the right, y down, z forward."""
    lens: tuple[float, float, float, float] | None = None
    """Focal lengths and centre, as shares of the picture's width and height: fx, fy, cx, cy. None: the
    model's own."""

    def check(self) -> None:
        check_motion(self.motion)
        if self.lens is not None:
            check_lens(self.lens)


class FrameConditions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All conditions of one latent frame."""

    actions: FrameActions | None = None
    """None: the model takes none."""
    camera: CameraMotion | None = None
    """None: the model takes none."""

    def check(self) -> None:
        if self.actions is not None:
            self.actions.check()
        if self.camera is not None:
            self.camera.check()


class BeginFrom(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Picture that an epoch begins with, in the envelope of its first chunk."""

    digest: str
    """Digest of the `Picture`."""
    frames: int = 1
    """Latent frames that it makes: the epoch's first ones, before this chunk's or within it."""


def check_keys(keys: tuple[str, ...]) -> None:
    if len(keys) > MAX_KEYS:
        raise ControlError(f"at most {MAX_KEYS} keys are held at a time, got {len(keys)}")
    for key in keys:
        if not 0 < len(key) <= MAX_KEY_LETTERS or not key.isascii() or not key.isprintable():
            raise ControlError(
                f"a key has a name of 1 to {MAX_KEY_LETTERS} letters, as w or left, got {key[:40]!r}"
            )


def check_look(look: tuple[float, float]) -> None:
    if any(not math.isfinite(turn) for turn in look):
        raise ControlError(f"look is two angles in degrees, got {look}")


def check_axes(axes: tuple[float, ...]) -> None:
    if len(axes) > MAX_AXES or any(not -1 <= axis <= 1 for axis in axes):
        raise ControlError(f"axes are up to {MAX_AXES} numbers between -1 and 1, got {axes[:MAX_AXES]}")


def check_motion(motion: tuple[float, ...]) -> None:
    """Raise unless it is a rotation and a translation within reach."""
    if len(motion) != 12 or any(not math.isfinite(number) for number in motion):
        raise ControlError(f"a camera's motion is 12 finite numbers, [R|t] row by row, got {len(motion)}")
    rows = (motion[0:3], motion[4:7], motion[8:11])
    for number, row in enumerate(rows):
        for other_number, other in enumerate(rows):
            product = sum(a * b for a, b in zip(row, other, strict=True))
            if abs(product - (number == other_number)) > ROTATION_ERROR:
                raise ControlError("a camera's motion begins with a rotation; its rows are not orthonormal")
    if _determinant(rows) < 0:
        raise ControlError("a camera's motion begins with a rotation; this one is a reflection")
    distance = math.hypot(motion[3], motion[7], motion[11])
    if distance > MAX_STEP:
        raise ControlError(f"a camera moves by at most {MAX_STEP:g} a frame, got {distance:g}")


def check_lens(lens: tuple[float, float, float, float]) -> None:
    fx, fy, cx, cy = lens
    if any(not math.isfinite(number) for number in lens) or not (0.05 <= fx <= 50 and 0.05 <= fy <= 50):
        raise ControlError(f"a lens has focal lengths of 0.05 to 50 pictures, got {fx:g} and {fy:g}")
    if not (-1 <= cx <= 2 and -1 <= cy <= 2):
        raise ControlError(f"a lens has its centre near the picture, got {cx:g}, {cy:g}")


def _determinant(rows: tuple[tuple[float, ...], ...]) -> float:
    (a, b, c), (d, e, f), (g, h, i) = rows
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)
