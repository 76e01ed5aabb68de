"""A chunk's pictures are shared out among threads and come back in order, whatever else the pool does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from millstream.core.client_messages import FORMATS, Format
from millstream.server.sessions.piecewise import PIECE, encode_piecewise
from millstream.video.encoding import Frames, ImageEncoder, encoder_for

PATIENCE_S = 30.0


def frames(count: int) -> Frames:
    return np.random.default_rng(count).integers(0, 256, (count, 16, 24, 3), dtype=np.uint8)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as threads:
        yield threads


class Marked(ImageEncoder):
    """Says which thread made each picture; a piece waits until as many threads have come as `together`."""

    def __init__(self, together: int = 1) -> None:
        super().__init__("jpeg")
        self.meeting = threading.Barrier(together)
        self.threads = set[int]()

    def encode(self, frames_THW3: Frames, *, fps: float) -> tuple[bytes, ...]:
        self.meeting.wait(PATIENCE_S)
        self.threads.add(threading.get_ident())
        return super().encode(frames_THW3, fps=fps)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("count", [1, PIECE, PIECE + 1, 9, 12, 33])
def test_the_bytes_and_their_order_are_those_of_one_thread(
    pool: ThreadPoolExecutor, format: Format, count: int
) -> None:
    pictures = frames(count)
    parts, seconds = pool.submit(encode_piecewise, pool, encoder_for(format), pictures, 16.0).result(
        PATIENCE_S
    )
    assert parts == encoder_for(format).encode(pictures, fps=16.0)
    assert seconds > 0


def test_threads_that_have_nothing_else_to_do_take_part(pool: ThreadPoolExecutor) -> None:
    encoder = Marked(together=3)
    pool.submit(encode_piecewise, pool, encoder, frames(3 * PIECE), 16.0).result(PATIENCE_S)
    assert len(encoder.threads) == 3


def test_a_busy_pool_leaves_it_all_to_one_thread_and_nobody_waits_for_a_thread(
    pool: ThreadPoolExecutor,
) -> None:
    over = threading.Event()
    encoders = [Marked() for _ in range(2)]
    busy = [pool.submit(over.wait, PATIENCE_S) for _ in range(2)]
    waiting = [pool.submit(encode_piecewise, pool, encoder, frames(12), 16.0) for encoder in encoders]
    for each in waiting:
        assert len(each.result(PATIENCE_S)[0]) == 12
    over.set()
    assert all(len(encoder.threads) == 1 for encoder in encoders)
    assert all(each.result() for each in busy)


def test_every_thread_at_a_chunk_of_its_own_ends(pool: ThreadPoolExecutor) -> None:
    pictures = frames(12)
    chunks = [pool.submit(encode_piecewise, pool, ImageEncoder("jpeg"), pictures, 16.0) for _ in range(50)]
    alone = ImageEncoder("jpeg").encode(pictures, fps=16.0)
    assert all(chunk.result(PATIENCE_S)[0] == alone for chunk in chunks)


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_piece_that_cannot_be_encoded_is_told_whoever_made_it(
    pool: ThreadPoolExecutor, broken: int
) -> None:
    pictures = frames(3 * PIECE)
    mark = pictures[broken * PIECE].copy()

    class Breaking(ImageEncoder):
        def encode(self, frames_THW3: Frames, *, fps: float) -> tuple[bytes, ...]:
            if np.array_equal(frames_THW3[0], mark):
                raise ValueError("no such colour")
            return super().encode(frames_THW3, fps=fps)

    with pytest.raises(ValueError, match="no such colour"):
        pool.submit(encode_piecewise, pool, Breaking("jpeg"), pictures, 16.0).result(PATIENCE_S)


def test_a_pool_that_is_being_closed_still_ends_the_chunk_that_it_has() -> None:
    pool = ThreadPoolExecutor(1)
    begun = threading.Event()
    closing = threading.Event()

    def late() -> int:
        begun.set()
        closing.wait(PATIENCE_S)
        return len(encode_piecewise(pool, ImageEncoder("jpeg"), frames(12), 16.0)[0])

    made: Future[int] = pool.submit(late)
    assert begun.wait(PATIENCE_S)
    pool.shutdown(wait=False, cancel_futures=True)
    closing.set()
    assert made.result(PATIENCE_S) == 12
