"""What a clip costs: bytes and likeness of Brook's pictures, from libx264 with its macroblock tree and as it is asked.

    python -m benchmarks.clip_size

Likeness is to what the encoder was given, so what turning RGB into fewer colours loses is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

import av
import numpy as np

from millstream import Engine
from millstream.commands.bench.quality import psnr
from millstream.core.examples import DEFAULT_PROMPT
from millstream.video.encoders import ENCODERS, FileFormat

CHUNKS = 9
(TODAY,) = (encoder for encoder in ENCODERS[".mp4"] if encoder.name == "libx264")
WAYS = {"with the tree": replace(TODAY, options={**TODAY.options, "crf": "18", "mbtree": "1"}), "as it is": TODAY}


def main() -> None:
    with Engine("brook", weights="bundled", device="cpu").session(DEFAULT_PROMPT) as session:
        frames = np.concatenate([chunk.frames for chunk in session.stream(CHUNKS)])
    planes = planes_of(TODAY, frames)
    for name, encoder in WAYS.items():
        packets = encode(encoder, planes, frames.shape[1:3])
        size, likeness = sum(packet.size for packet in packets), psnr(np.stack(decoded(packets)), np.stack(planes))
        print(f"{name}, crf {encoder.options['crf']}: {size} bytes, {likeness:.1f} dB")


def planes_of(encoder: FileFormat, frames: np.ndarray) -> list[np.ndarray]:
    """Pictures as the encoder takes them."""
    pictures = (av.VideoFrame.from_ndarray(frame, format="rgb24") for frame in frames)
    return [picture.reformat(format=encoder.pixel_format).to_ndarray() for picture in pictures]


def encode(encoder: FileFormat, planes: Iterable[np.ndarray], size: tuple[int, int]) -> list[av.Packet]:
    """All packets. Libraries take most of their memory when the first picture comes."""
    context = av.CodecContext.create(encoder.name, "w")
    context.height, context.width = size
    context.pix_fmt, context.time_base, context.options = encoder.pixel_format, Fraction(1, 24), dict(encoder.options)
    packets = list[av.Packet]()
    for number, plane in enumerate(planes):
        picture = av.VideoFrame.from_ndarray(plane, format=encoder.pixel_format)
        picture.pts = number
        packets += context.encode(picture)
    return [*packets, *context.encode(None)]


def decoded(packets: Sequence[av.Packet]) -> list[np.ndarray]:
    decoder = av.CodecContext.create("h264", "r")
    return [frame.to_ndarray() for packet in [*packets, None] for frame in decoder.decode(packet)]


if __name__ == "__main__":
    main()
