"""One picture as PNG bytes. Knows nothing of files or sending."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np


def png(picture_HW3: np.ndarray) -> bytes:
    height, width, _ = picture_HW3.shape
    codec = av.CodecContext.create("png", "w")
    codec.width = width
    codec.height = height
    codec.pix_fmt = "rgb24"
    codec.time_base = Fraction(1)
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture_HW3), format="rgb24")
    return b"".join(bytes(packet) for packet in [*codec.encode(frame), *codec.encode(None)])
