"""Spans: always on, of somebody's chunk, bounded, and readable by a profiler beside them."""

from __future__ import annotations

import msgspec
import torch
from hypothesis import given
from hypothesis import strategies as st

from millstream import Engine
from millstream.core.trace import NOBODY, Span, Work, chrome_trace, parse_label, span_label
from millstream.generation.stopwatch import Stopwatch
from tests.unit.models_for_tests import tiny_engine
from tests.unit.one_chunk import plan_chunk

CPU = torch.device("cpu")


def engine() -> Engine:
    return Engine("wan-tiny", weights="random", device="cpu", dtype="float32")


def test_every_span_says_whose_chunk_it_was() -> None:
    tiny = engine()
    with tiny.session("a kite", session_id="one") as one, tiny.session("a boat", session_id="two") as two:
        for _ in range(2):
            next(one.stream(1))
            next(two.stream(1))
    spans = list(tiny.generator.stopwatch.spans)
    assert {(span.work.session, span.work.chunk) for span in spans} == {
        ("one", 0),
        ("one", 1),
        ("two", 0),
        ("two", 1),
    }
    steps = [span for span in spans if span.name == "step"]
    assert len({span.work.call for span in steps}) == 4, "a call id per chunk, over all sessions"
    assert all(span.rank == 0 and span.ms > 0 for span in steps)
    decodes = {span.work for span in spans if span.name == "decode"}
    assert decodes == {span.work for span in steps}


def test_spans_lie_one_after_another_as_they_ran() -> None:
    tiny = engine()
    with tiny.session("a kite") as session:
        list(session.stream(2))
    spans = list(tiny.generator.stopwatch.spans)
    ends = [span.begin_ms + span.ms for span in spans]
    assert all(span.begin_ms >= end - 1e-6 for span, end in zip(spans[1:], ends, strict=False))


def test_a_chunks_phases_are_the_sums_of_its_spans() -> None:
    tiny = engine()
    with tiny.session("a kite") as session:
        (chunk,) = session.stream(1)
    total: dict[str, float] = {}
    for span in tiny.generator.stopwatch.spans:
        total[span.name] = total.get(span.name, 0.0) + span.ms
    assert total == dict(chunk.timing.phases_ms)


def test_a_lap_of_one_chunk_leaves_those_planned_after_it_and_forgets_those_before() -> None:
    watch = Stopwatch(CPU)
    begun = plan_chunk(tiny_engine().session("a kite")).envelope
    for call in (7, 8, 9):
        watch.attend_to(msgspec.structs.replace(begun, call_id=call))
        with watch.span(f"call {call}"):
            pass
    assert set(watch.lap(msgspec.structs.replace(begun, call_id=8))) == {"call 8"}
    assert set(watch.lap()) == {"call 9"}
    assert watch.lap() == {}


def test_the_oldest_spans_go_when_there_are_too_many() -> None:
    watch = Stopwatch(CPU, rank=3, kept=5)
    for number in range(12):
        with watch.span(f"n{number}"):
            pass
    assert [span.name for span in watch.spans] == ["n7", "n8", "n9", "n10", "n11"]
    assert {span.rank for span in watch.spans} == {3}
    assert len(watch.lap()) == 12, "what a lap adds up is not what is kept"


@given(
    name=st.from_regex(r"\w+", fullmatch=True),
    session=st.from_regex(r"[^\s]*", fullmatch=True),
    chunk=st.integers(-1, 9**9),
)
def test_a_label_says_the_same_when_it_is_read_back(name: str, session: str, chunk: int) -> None:
    work = Work(session=session, chunk=chunk, call=chunk)
    assert parse_label(span_label(name, work)) == (name, work)


def test_other_peoples_labels_are_not_ours() -> None:
    assert parse_label("ProfilerStep#3") is None
    assert parse_label("millstream.write") == ("write", NOBODY)


def test_a_profiler_is_told_of_spans_only_when_it_asks() -> None:
    watch = Stopwatch(CPU)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        with watch.span("quiet"):
            pass
        watch.annotate = True
        with watch.span("told"):
            pass
    names = {event.name for event in profiler.events()}
    assert span_label("told", NOBODY) in names
    assert not any("quiet" in name for name in names)


def test_spans_as_a_trace_keep_their_ranks_and_microseconds() -> None:
    span = Span(name="step", work=Work(session="s", chunk=1, call=2), rank=1, begin_ms=2.0, ms=0.5)
    trace = chrome_trace([span], metadata={"chunks": 1})
    (event,) = trace["traceEvents"]
    assert (event["pid"], event["ts"], event["dur"]) == (1, 2000.0, 500.0)
    assert parse_label(event["name"]) == ("step", span.work)
    assert trace["millstream"] == {"chunks": 1}
