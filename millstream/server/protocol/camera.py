"""One picture from a client's camera to a frame of the stream's size. Asked for its size before it is
decoded.

Shapes: H height, W width, 3 is RGB.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from millstream.core.client_messages import ProtocolError
from millstream.video.encoding import Frames

KINDS = ("JPEG", "PNG", "WEBP")


def read_frame(data: bytes, size: tuple[int, int], *, max_pixels: int) -> Frames:
    """[H, W, 3]: the picture's middle, scaled to fill."""
    height, width = size
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(data), formats=KINDS) as picture:
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if picture.width * picture.height > max_pixels:
                raise ProtocolError(
                    "too_large", f"a frame may have {max_pixels} pixels, got {picture.width}x{picture.height}"
                )
            picture.draft(
                "RGB", (width, height)
            )  # a JPEG much larger than needed is decoded at a fraction of its size
            return np.asarray(
                ImageOps.fit(picture.convert("RGB"), (width, height), Image.Resampling.BILINEAR)
            )
    except (
        UnidentifiedImageError,
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
        Image.DecompressionBombError,
        Warning,
    ):
        raise ProtocolError("bad_message", f"a frame must be one whole {', '.join(KINDS)} picture") from None
