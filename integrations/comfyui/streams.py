"""Streams that stay open between two runs of a workflow, by name. Knows `millstream.client`, no ComfyUI and
no torch.

A stream stands still between runs: the next one goes on where the last one stopped, and the server is free
for others.
Shapes: T frames, H height, W width, 3 is RGB.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millstream.client import Ask, ClientError, connect
from millstream.client.chunk import StillFormat
from millstream.core.config import pixel_frames
from millstream.core.controls import Pause, Resume, SetPrompt, Switch

Frames = NDArray[np.uint8]
Progress = Callable[[int], None]
"""Told how many frames there are so far."""
KEY_VARIABLE = "MILLSTREAM_API_KEY"
"""Not a field of a node: ComfyUI writes those into every picture it saves."""
MAX_AHEAD = 36
"""Input frames that may be ahead of the stream; a server keeps 48 and drops the oldest."""


@dataclass(frozen=True, kw_only=True)
class OpenOptions:
    """What a stream is opened with."""

    url: str
    prompt: str
    size: str
    """HEIGHTxWIDTH; empty: the model's own."""
    seed: int
    input: bool
    noise_scale: float
    format: StillFormat


class Stream:
    def __init__(self, wanted: OpenOptions) -> None:
        self.wanted = wanted
        self._is_closed = False
        self._prompt = wanted.prompt
        self._left: list[Frames] = []
        """Frames that came and were not asked for yet."""
        self._num_taken = self._num_sent = 0
        """Frames out and in. The n-th that comes out is made from the n-th that went in."""
        asked = {"noise_scale": wanted.noise_scale} if wanted.input else {}
        ask = Ask(
            prompt=wanted.prompt, size=wanted.size or None, seed=wanted.seed, input=wanted.input, **asked
        )
        with ExitStack() as opening:
            self._client = opening.enter_context(
                connect(wanted.url, key=os.environ.get(KEY_VARIABLE), format=wanted.format)
            )
            config = self._client.start(ask).config
            self._client.steer(Pause())
            self._open = opening.pop_all()
        self.fps = self._client.hello.defaults.fps
        """What frames are to be shown at: the model's own rate, however fast the server is."""
        later_chunk = int(config["frames_per_chunk"])
        self._chunk_frames = pixel_frames(later_chunk, later_chunk)

    @property
    def is_over(self) -> bool:
        return self._is_closed or self._client.ended is not None

    def steer(self, prompt: str, mode: Switch) -> None:
        """The same again is no change: a workflow says it in every run."""
        if prompt and prompt != self._prompt:
            with self._watched():
                self._client.steer(SetPrompt(prompt=prompt, mode=mode))
            self._prompt = prompt

    def take(self, count: int, progress: Progress) -> Frames:
        """The next T = `count` frames."""
        if self.wanted.input:
            raise ValueError(
                "this stream was opened with input: give it frames by the node Millstream Video to Video"
            )
        return self._collect(count, progress)

    def restyle(self, frames_THW3: Frames, progress: Progress) -> Frames:
        """As many frames as go in. What the last chunk lacks is filled up with the last frame, and left out
        afterwards."""
        if not self.wanted.input:
            raise ValueError("this stream takes no frames: open it with input switched on")
        count = len(frames_THW3)
        begin = self._num_sent
        end = begin + count + self._chunk_frames - 1

        def send_more(num_made: int) -> None:
            while self._num_sent < min(end, num_made + MAX_AHEAD):
                self._client.send_frame(frames_THW3[min(self._num_sent - begin, count - 1)])
                self._num_sent += 1

        skipped = begin - self._num_taken  # made of what filled up the last run
        return self._collect(skipped + count, progress, send_more)[skipped:]

    def close(self) -> None:
        self._is_closed = True
        self._open.close()

    def _collect(self, count: int, progress: Progress, send_more: Progress = lambda num_made: None) -> Frames:
        with self._running():
            while (have := sum(map(len, self._left))) < count:
                progress(have)
                send_more(self._num_taken + have)
                self._left.append(self._next_frames())
        progress(count)
        frames = np.concatenate(self._left)
        self._num_taken = self._num_taken + count
        self._left = [frames[count:]]
        return frames[:count]

    def _next_frames(self) -> Frames:
        chunk = self._client.next_chunk()
        if chunk is None:
            raise ClientError("the stream has ended; run the workflow again for a new one")
        return chunk.frames

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Not paused. Paused again however it ends: a progress bar raises when somebody interrupts the
        workflow."""
        with self._watched():
            self._client.steer(Resume())
            try:
                yield
            finally:
                if self._client.ended is None:
                    self._client.steer(Pause())

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """A lost connection is no stream any more: the next run opens another. One that was refused something
        goes on."""
        try:
            yield
        except ClientError as error:
            self._is_closed = not error.code
            raise


OPEN: dict[str, Stream] = {}


def open_stream(name: str, wanted: OpenOptions) -> Stream:
    """The one of that name, where it was opened with the same and still runs; else a new one in its place."""
    found = OPEN.get(name)
    if found is not None and found.wanted == wanted and not found.is_over:
        return found
    close_stream(name)
    OPEN[name] = Stream(wanted)
    return OPEN[name]


def close_stream(name: str) -> None:
    stream = OPEN.pop(name, None)
    if stream is not None:
        stream.close()


@atexit.register
def close_all() -> None:
    for name in list(OPEN):
        close_stream(name)
