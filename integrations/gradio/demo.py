"""Show a stream in Gradio and steer it: `python integrations/gradio/demo.py http://127.0.0.1:8000`"""

import os
import sys
import time
from collections.abc import Iterator

import gradio as gr
import numpy as np

from millstream.client import Client, connect

STREAMS: dict[str | None, Client] = {}  # one for each page


def play(prompt: str, page: gr.Request) -> Iterator[np.ndarray]:
    with connect(sys.argv[1], key=os.environ.get("MILLSTREAM_API_KEY")) as client:
        client.start(prompt)
        STREAMS[page.session_hash] = client
        due = time.monotonic()
        for chunk in client.chunks():
            for frame in chunk.frames:
                due = max(due + 1 / chunk.fps, time.monotonic() - 0.5)
                if (wait_s := due - time.monotonic()) > -0.1:  # a slow page misses frames, not the moment
                    time.sleep(max(0, wait_s))
                    yield frame


def steer(prompt: str, page: gr.Request) -> None:
    STREAMS[page.session_hash].steer(prompt)


def end(page: gr.Request) -> None:
    STREAMS.pop(page.session_hash).stop()


with gr.Blocks(delete_cache=(60, 60)) as demo:
    prompt = gr.Textbox("a red balloon over the hills at dusk", label="Prompt")
    screen = gr.Image(format="jpeg", label="Stream")
    demo.load(play, prompt, screen, concurrency_limit=None, show_progress="hidden")
    prompt.submit(steer, prompt)
    demo.unload(end)
demo.launch()
