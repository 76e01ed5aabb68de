"""What is read from a run's times: the score, the signature; and the order of work, with a mesh that is a
fake."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from millstream.core.controls import Cut, Pause, SetPrompt
from millstream.core.errors import ConfigError
from millstream.core.overlap import LEFT_OUT, ChunkPace, overlap_of
from millstream.engine.depths import QUEUED, Depths
from millstream.engine.stream import Stream
from millstream.session.chunk import PendingChunk
from millstream.session.session import Session
from millstream.wire.parcel import Delivery, Parcel
from tests.unit.models_for_tests import tiny_engine

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = dict(height=16, width=32, window=6, seed=1)


@pytest.mark.parametrize(
    ("stage0", "stage1", "period", "score"),
    [(185, 885, 1071, 0.0), (185, 805, 992, 0.0), (185, 805, 811, 0.97)],
)
def test_the_score_is_the_share_of_the_shorter_stage_that_is_hidden(
    stage0: float, stage1: float, period: float, score: float
) -> None:
    paces = [ChunkPace(stage0_ms=stage0, stage1_ms=stage1, period_ms=period)] * (LEFT_OUT + 3)
    assert overlap_of(paces).score == pytest.approx(score, abs=0.005)


def test_the_first_chunks_do_not_count() -> None:
    cold = ChunkPace(stage0_ms=100, stage1_ms=100, period_ms=900)
    warm = ChunkPace(stage0_ms=10, stage1_ms=20, period_ms=20)
    assert overlap_of([cold] * LEFT_OUT + [warm]).score == 1.0
    with pytest.raises(AssertionError, match="too few"):
        overlap_of([cold] * LEFT_OUT)


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.floats(0, 1))
def test_a_score_is_between_nothing_and_all_whatever_the_times(
    stage0: float, stage1: float, share: float
) -> None:
    longer = max(stage0, stage1)
    both = stage0 + stage1
    pace = ChunkPace(stage0_ms=stage0, stage1_ms=stage1, period_ms=longer + share * (both - longer))
    assert -1e-6 <= pace.score <= 1 + 1e-6


def test_signatures_name_who_waits_for_whom() -> None:
    def signature(**fields: float) -> str:
        pace = ChunkPace(**(dict(stage0_ms=185, stage1_ms=805, period_ms=0) | fields))
        return overlap_of([pace] * (LEFT_OUT + 1)).signature

    assert signature(period_ms=811, idle_ms=6, waiting_in=2, waiting_out=0) == "mesh-bound"
    assert signature(period_ms=992, idle_ms=187, waiting_in=0, waiting_out=0) == "serialised"
    assert (
        signature(stage0_ms=1600, period_ms=1610, idle_ms=805, waiting_in=0, waiting_out=2) == "front-bound"
    )
    assert (
        signature(stage0_ms=1600, period_ms=1610, idle_ms=805, waiting_in=1, waiting_out=0) == "front-bound"
    )


class Trace:
    """A transport that answers when it is asked, and writes down what happened in which order."""

    def __init__(self) -> None:
        self.local = tiny_engine().transport
        self.events: list[str] = []
        self.flying: deque[TracedPost] = deque()
        self.most = 0

    def post(self, parcels: Sequence[Parcel]) -> TracedPost:
        (parcel,) = parcels
        self.events.append(f"send {parcel.envelope.chunk_index}")
        self.flying.append(TracedPost(self, parcel))
        self.most = max(self.most, len(self.flying))
        return self.flying[-1]


class TracedPost:
    def __init__(self, trace: Trace, parcel: Parcel) -> None:
        self._trace = trace
        self._parcel = parcel

    def done(self) -> bool:
        return False

    def ahead(self) -> list[Tensor]:
        return []

    def result(self) -> list[Delivery]:
        assert self._trace.flying.popleft() is self, "results are asked for in order"
        self._trace.events.append(f"have {self._parcel.envelope.chunk_index}")
        return self._trace.local.post([self._parcel]).result()


def traced(session: Session, depths: Depths, chunks: int) -> Trace:
    trace = Trace()
    finish = session.finish

    def shown(arrived: Any, **options: Any) -> Any:
        trace.events.append(f"show {arrived.envelope.chunk_index}")
        return finish(arrived, **options)

    def queued(arrived: Any) -> None:
        if arrived.decoded < arrived.envelope.frames:
            trace.events.append(f"decode {arrived.envelope.chunk_index}")
        decode_all(arrived)

    decode_all = session.decode_all
    session.finish = shown  # type: ignore[method-assign]
    if depths.shares_device:
        session.decode_all = queued  # type: ignore[method-assign]
    for _ in Stream(session, trace.post, depths, tiny_engine().parts.stopwatch).stream(chunks):
        pass
    return trace


def test_the_next_chunk_leaves_before_the_last_ones_pictures_are_made() -> None:
    events = traced(tiny_engine().session("sea", **SMALL), Depths(d_in=1, d_out=1), 3).events
    assert events == [
        "send 0",
        "have 0",
        "send 1",
        "show 0",
        "have 1",
        "send 2",
        "show 1",
        "have 2",
        "show 2",
    ]


def test_on_a_device_that_does_both_pictures_are_queued_before_the_next_chunk_and_waited_for_behind_it() -> (
    None
):
    events = traced(tiny_engine().session("sea", **SMALL), QUEUED, 2).events
    assert events == ["send 0", "have 0", "decode 0", "send 1", "show 0", "have 1", "decode 1", "show 1"]


@pytest.mark.parametrize(
    ("anchor", "decoded"), [("off", [3, 3, 3]), ("latent", [3, 3, 3]), ("decoded", [0, 0, 0])]
)
def test_pictures_are_queued_before_anybody_looks_at_the_latents_unless_chunks_are_built_on_them(
    anchor: str, decoded: list[int]
) -> None:
    engine = tiny_engine()
    session = engine.session("sea", **SMALL, anchor=anchor)
    receive = session.receive
    found = []

    def received(chunk: PendingChunk, delivery: Delivery) -> None:
        found.append(chunk.decoded)
        receive(chunk, delivery)

    session.receive = received  # type: ignore[method-assign]
    assert len(list(engine.stream(session, depths=QUEUED).stream(3))) == 3
    assert found == decoded


@pytest.mark.parametrize("d_in", [1, 2, 4])
def test_no_more_chunks_are_under_way_than_the_queue_holds(d_in: int) -> None:
    assert traced(tiny_engine().session("sea", **SMALL), Depths(d_in=d_in), 8).most == d_in


def test_with_decoded_anchors_a_chunk_leaves_when_its_anchor_is_there_or_after_the_whole_chunk() -> None:
    first = traced(tiny_engine().session("sea", **SMALL, anchor="decoded"), Depths(send_first=True), 3).events
    assert first.index("send 2") < first.index("show 1")
    last = traced(tiny_engine().session("sea", **SMALL, anchor="decoded"), Depths(send_first=False), 3).events
    assert last.index("send 2") > last.index("show 1")


@pytest.mark.parametrize(
    "changes", [{}, {"anchor": "latent"}, {"anchor": "decoded"}, {"window": 9, "sink": 3}]
)
@pytest.mark.parametrize("depths", [Depths(), Depths(d_in=3, d_out=3), Depths(send_first=False), QUEUED])
def test_whatever_overlaps_the_stream_is_the_same(changes: dict[str, Any], depths: Depths) -> None:
    def session() -> Session:
        made = tiny_engine().session("sea", **(SMALL | changes))
        made.control(SetPrompt(prompt="hills", mode="recompute"), at_chunk=3)
        made.control(Cut(), at_chunk=5)
        made.control(SetPrompt(prompt="rain", mode="blend", chunks=2), at_chunk=6)
        return made

    plain = list(session().stream(8))
    engine = tiny_engine()
    overlapped = list(engine.stream(session(), depths=depths).stream(8))
    assert [chunk.digest for chunk in overlapped] == [chunk.digest for chunk in plain]
    assert all((one.frames == other.frames).all() for one, other in zip(plain, overlapped, strict=True))
    assert [chunk.receipts for chunk in overlapped] == [chunk.receipts for chunk in plain]


def test_a_pause_ends_the_stream_once_everything_under_way_is_shown() -> None:
    session = tiny_engine().session("sea", **SMALL)
    session.control(Pause(), at_chunk=4)
    stream = Stream(session, Trace().post, Depths(), tiny_engine().parts.stopwatch)
    assert [chunk.index for chunk in stream.stream()] == [0, 1, 2, 3]


def test_queues_without_a_place_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 chunk or more"):
        Depths(d_in=0)
