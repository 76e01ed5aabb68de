"""Give one moment two futures; both go on from the same bits: python examples/fork.py"""

import numpy as np

from millstream import Engine, SetPrompt

engine = Engine("brook", weights="bundled")
dawn = engine.session("a white boat on the sea at dawn")
for chunk in dawn.stream(chunks=3):
    print(f"chunk {chunk.index}: one stream")

night = dawn.fork()
night.control(SetPrompt(prompt="a white boat on the sea at night", mode="recompute"))
for _ in range(3):
    (of_dawn,) = dawn.stream(chunks=1)
    (of_night,) = night.stream(chunks=1)
    apart = np.abs(of_dawn.frames.astype(float) - of_night.frames).mean()
    print(f"chunk {of_dawn.index}: the futures are {apart:.1f} of 255 apart")
