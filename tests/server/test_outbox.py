"""A slow client loses pictures, the oldest first, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.controls import Receipt
from millstream.core.trace import ChunkTiming
from millstream.server.sessions.outbox import ClientGone, EncodedChunk, Outbox, OutboxLimits
from millstream.session.chunk import Chunk


def picture(index: int, size: int = 10) -> EncodedChunk:
    chunk = Chunk(
        index=index, epoch=0, frames=np.empty((0, 1, 1, 3), np.uint8), num_frames=1, fps=16.0, prompts=(), digest="",
        timing=ChunkTiming(total_ms=1.0, phases_ms={}),
        receipts=(Receipt(control_id=f"c{index}", state="applied", chunk_index=index),),
    )  # fmt: skip
    return EncodedChunk(chunk=chunk, format="jpeg", parts=(b"x" * size,))


def taken(outbox: Outbox) -> list[Any]:
    async def all_of_it() -> list[Any]:
        found = []
        outbox.finish()
        while (item := await outbox.pop()) is not None:
            found.append(item)
        return found

    return asyncio.run(all_of_it())


def test_the_oldest_pictures_lose_their_payload_and_keep_their_receipts() -> None:
    outbox = Outbox(OutboxLimits(max_pictures=2))
    for index in range(5):
        outbox.put(picture(index))
    found = taken(outbox)
    assert [bool(each.parts) for each in found] == [False, False, False, True, True]
    assert [each.chunk.receipts[0].control_id for each in found] == ["c0", "c1", "c2", "c3", "c4"]
    assert {each.dropped for each in found} == {3}


def test_large_pictures_count_by_their_bytes_but_the_newest_always_goes_out() -> None:
    outbox = Outbox(OutboxLimits(max_pictures=10, max_picture_bytes=100))
    for index in range(3):
        outbox.put(picture(index, size=90))
    assert [bool(each.parts) for each in taken(outbox)] == [False, False, True]
    alone = Outbox(OutboxLimits(max_picture_bytes=1))
    alone.put(picture(0, size=1000))
    assert taken(alone)[0].parts


@given(
    st.lists(st.one_of(st.integers(0, 9), st.text(max_size=3), st.just("take")), max_size=60),
    st.integers(1, 5),
)
def test_order_is_kept_and_no_message_is_lost(steps: list[int | str], max_pictures: int) -> None:
    outbox = Outbox(OutboxLimits(max_pictures=max_pictures))
    put: list[Any] = []
    found: list[Any] = []

    async def play() -> None:
        for step in steps:
            if step == "take":
                if len(outbox):
                    found.append(await outbox.pop())
            else:
                item = picture(step) if isinstance(step, int) else ("said", step)
                put.append(item)
                outbox.put(item)
            waiting = [item for item in outbox._items if isinstance(item, EncodedChunk) and item.parts]
            assert len(waiting) <= max_pictures
        outbox.finish()
        while (item := await outbox.pop()) is not None:
            found.append(item)

    asyncio.run(play())
    assert [i.chunk if isinstance(i, EncodedChunk) else i for i in found] == [
        i.chunk if isinstance(i, EncodedChunk) else i for i in put
    ]
    assert outbox.dropped == sum(1 for item in found if isinstance(item, EncodedChunk) and not item.parts)


def test_of_figures_only_the_newest_waits() -> None:
    outbox = Outbox()
    for value in (1.0, 2.0, 3.0):
        outbox.put_newest(value)
        outbox.put("between")
    assert taken(outbox) == ["between", "between", 3.0, "between"]


def test_a_client_that_lets_everything_pile_up_is_given_up_and_its_memory_freed() -> None:
    async def play() -> None:
        outbox = Outbox(OutboxLimits(max_items=10))
        for number in range(50):
            outbox.put(number)
        assert len(outbox) == 0
        with pytest.raises(ClientGone):
            await outbox.pop()

    asyncio.run(play())


def test_a_client_that_does_not_take_one_item_is_given_up() -> None:
    async def play() -> None:
        outbox = Outbox(OutboxLimits(patience_s=0.05))
        outbox.put("hello")
        with pytest.raises(ClientGone):
            await outbox.drain(lambda item: asyncio.sleep(60))

    asyncio.run(play())
