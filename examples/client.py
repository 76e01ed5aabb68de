"""Steer a stream of a running server (`millstream serve`): python examples/client.py [URL]"""

import sys

from millstream.client import connect

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"

with connect(url) as client:
    client.start("a red balloon over the hills at dusk")
    for chunk in client.chunks(6):
        print(f"chunk {chunk.index}: {chunk.frames.shape} at {chunk.fps:g} frames a second")
        if chunk.index == 1:
            asked = client.steer("a white boat on the sea at dawn")
    print("the boat shows since chunk", client.applied(asked).chunk_index)
