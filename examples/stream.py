"""Stream a prompt and keep its last frame as a picture: python examples/stream.py [CHUNKS]"""

import sys

from PIL import Image

from millstream import Engine

chunks = int(sys.argv[1]) if len(sys.argv) > 1 else 8

engine = Engine("brook", weights="bundled")
session = engine.session("a yellow lantern over the sea at night", seed=3)
for chunk in session.stream(chunks=chunks):
    count, height, width, _ = chunk.frames.shape
    print(f"chunk {chunk.index}: {count} frames of {height}x{width} in {chunk.timing.total_ms:.0f} ms")

Image.fromarray(chunk.frames[-1]).save("last-frame.png")
