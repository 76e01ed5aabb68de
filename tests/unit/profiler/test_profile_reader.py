"""Traces are read one event at a time: whole or not at all, in bounded memory, whoever wrote them."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.core.errors import TraceError
from millstream.profiler import reader
from millstream.profiler.kinds import Kind, kind_of
from millstream.profiler.reader import TraceFile
from millstream.profiler.reading import read
from millstream.profiler.trace import read_trace

pytestmark = pytest.mark.slow
PLAIN = msgspec.json.Decoder(list[dict[str, Any]])


def event(name: str = "aten::mm", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10.0, "dur": 5.0, **more}


def write(folder: Path, text: str, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


VALUES = (
    st.integers()
    | st.text()
    | st.floats(allow_nan=False)
    | st.lists(st.just({}) | st.just({"a": "},\n  {"}), max_size=3)
)
"""What JSON allows, and infinity, which it does not and traces have."""


@given(
    events=st.lists(
        st.fixed_dictionaries({"name": st.text(), "args": st.dictionaries(st.text(), VALUES)}), max_size=12
    ),
    block=st.integers(1, 70) | st.just(1 << 20),
    spaces=st.sampled_from([None, 1]),
)
def test_events_are_the_same_wherever_the_window_cuts_them(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], block: int, spaces: int | None
) -> None:
    text = json.dumps({"before": 1234567, "traceEvents": events, "after": [1]}, indent=spaces)
    file = TraceFile(write(tmp_path_factory.mktemp("t"), text), PLAIN, dict, block=block)
    assert [each for found in file.blocks() for each in found] == events
    assert file.metadata == {"before": 1234567, "after": [1]}


def test_a_name_with_what_json_does_not_allow_costs_no_event(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [event(f"number {i}") for i in range(40)]}, indent=1)
    file = TraceFile(write(tmp_path, text.replace("number 20", "number\n20")), PLAIN, dict, block=2000)
    names = [found["name"].replace("\n", " ") for block in file.blocks() for found in block]
    assert names == [f"number {i}" for i in range(40)]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace"])
@pytest.mark.parametrize("as_list", [True, False])
def test_packed_or_not_a_list_or_an_object(tmp_path: Path, name: str, as_list: bool) -> None:
    text = json.dumps([event()] if as_list else {"traceEvents": [event()]})
    assert len(read_trace(write(tmp_path, text, name)).events) == 1


WHOLE = json.dumps(
    {"schemaVersion": 1, "traceEvents": [event(f"aten::mm{i}") for i in range(50)], "traceName": "x"}
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("   \n ", "is empty"),
        ("hello", "is not a trace"),
        ("42", "is not a trace"),
        ("{}", "has no traceEvents"),
        ('{"traceEvents": {}}', "has no traceEvents"),
        ('{"traceEvents": []}', "has no timed events"),
        ('{"a": 1}', "has no traceEvents"),
        ("[1, 2, 3]", "its list holds int"),
        ('{"traceEvents": [{"ph": oops, "name": 3}], "more": "' + 200 * "x" + '"}', "not JSON"),
        (WHOLE[:-1], "cut off"),
        (WHOLE[: len(WHOLE) // 2], "cut off"),
        (WHOLE[:40], "cut off"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    result = CliRunner().invoke(app, ["profile", "read", str(write(tmp_path, text))])
    assert result.exit_code == 2
    assert said in result.output
    assert result.output.strip().count("\n") == 0


@given(cut=st.integers(0, len(WHOLE) - 1))
def test_a_trace_that_was_cut_off_anywhere_is_never_read_as_a_whole_one(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    with pytest.raises(TraceError):
        read_trace(write(tmp_path_factory.mktemp("t"), WHOLE[:cut]))


def test_a_packed_trace_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(WHOLE.encode())[:-30])
    with pytest.raises(TraceError, match="cut off"):
        read_trace(path)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "nowhere.json")


def test_chromes_bare_list_may_end_without_a_bracket_and_is_doubted(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, json.dumps([event(), event()])[:-1]))
    assert len(trace.events) == 2
    assert trace.unclosed


def test_a_trace_of_many_megabytes_is_read_in_a_few(tmp_path: Path) -> None:
    """Stacks are most of a large trace, and none of them is kept."""
    frame = json.dumps({**event("file.py(12): forward" + 400 * " "), "cat": "python_function"})
    path = tmp_path / "large.json"
    with path.open("w") as file:
        file.write('{"traceEvents": [' + json.dumps(event()))
        for _ in range(60_000):
            file.write(",\n" + frame)
        file.write("]}")
    assert path.stat().st_size > 30e6
    tracemalloc.start()
    trace = read_trace(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(trace.events) == 1
    assert peak < 12e6, f"{peak / 1e6:.0f} MB"


def test_more_events_than_are_kept_are_counted(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [event() for _ in range(20)]})
    trace = read_trace(write(tmp_path, text), max_events=8)
    assert len(trace.events) == 8
    assert trace.left_out == 12


def test_an_event_without_end_is_refused_before_it_fills_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_VALUE", 1000)
    text = '{"traceEvents": [{"name": "' + 3_000_000 * "x" + '"}]}'
    with pytest.raises(TraceError, match="no event ends"):
        list(TraceFile(write(tmp_path, text), PLAIN, dict, block=500).blocks())


def test_what_unpacks_for_ever_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_TEXT", 100_000)
    with pytest.raises(TraceError, match="larger than"):
        list(TraceFile(write(tmp_path, "[" + 300_000 * " ", "t.json.gz"), PLAIN, dict, block=1000).blocks())


def test_begins_and_ends_are_slices_too(tmp_path: Path) -> None:
    halves = [
        {"ph": "B", "name": "outer", "pid": 1, "tid": 1, "ts": 1.0},
        {"ph": "B", "name": "inner", "pid": 1, "tid": 1, "ts": 2.0},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 4.0},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 9.0},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 9.0},
    ]
    trace = read_trace(write(tmp_path, json.dumps(halves)))
    found = {trace.names[n]: float(d) for n, d in zip(trace.events.name, trace.events.length, strict=True)}
    assert found == {"outer": 8.0, "inner": 2.0}
    assert trace.broken == 1, "an end of nothing"


def test_events_without_a_time_are_counted_and_left_out(tmp_path: Path) -> None:
    broken = [event(), event(ts="soon"), event(dur=-3.0), {"ph": "X", "name": "no time"}]
    trace = read_trace(write(tmp_path, json.dumps(broken)))
    assert (len(trace.events), trace.broken) == (1, 3)


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        (
            "kernel",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            Kind.COLLECTIVE,
        ),
        ("kernel", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", Kind.EXCHANGE),
        ("kernel", "void at::native::vectorized_elementwise_kernel<4, ...>", Kind.KERNEL),
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", Kind.COPY),
        ("cuda_runtime", "cudaLaunchKernel", Kind.LAUNCH),
        ("cuda_runtime", "cudaGraphLaunch", Kind.GRAPH),
        ("cuda_runtime", "cudaStreamSynchronize", Kind.SYNC),
        ("cuda_runtime", "cudaMemcpyAsync", Kind.LAUNCH),
        ("cuda_runtime", "cudaMalloc", Kind.ALLOCATION),
        ("cuda_runtime", "cudaStreamIsCapturing", Kind.OTHER),
        ("cpu_op", "aten::addmm", Kind.OP),
        ("cpu_op", "entire_frame_compile (dynamo_timed)", Kind.COMPILE),
        ("user_annotation", "gloo:all_reduce", Kind.COLLECTIVE),
        ("user_annotation", "gloo:recv", Kind.EXCHANGE),
        ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", Kind.DATA),
        ("user_annotation", "millstream.decode session=a chunk=1 call=2", Kind.DECODE),
        ("user_annotation", "millstream.encode session=a chunk=1 call=2", Kind.NOTE),
        ("user_annotation", "millstream.write session=a chunk=1 call=2", Kind.ENCODE),
        ("overhead", "Activity Buffer Request", Kind.OVERHEAD),
    ],
)
def test_what_an_event_is(category: str, name: str, kind: Kind) -> None:
    assert kind_of(category, name) is kind


NUMBERS = st.integers(-(2**70), 2**70) | st.floats()
JUNK = st.none() | st.booleans() | NUMBERS | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
KNOWN = st.sampled_from(
    ["X", "B", "E", "i", "[memory]", "kernel", "cpu_op", "cuda_runtime", "gloo:recv", "aten::mm"]
)


@settings(max_examples=150)
@given(
    events=st.lists(
        st.dictionaries(
            st.sampled_from(FIELDS),
            JUNK
            | KNOWN
            | st.dictionaries(st.sampled_from(["correlation", "External id", "Input Dims", "Bytes"]), JUNK),
        ),
        min_size=1,
        max_size=8,
    ),
    beside=st.dictionaries(st.sampled_from(["deviceProperties", "distributedInfo", "millstream"]), JUNK),
)
def test_rubbish_is_read_or_refused_and_never_breaks_anything(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], beside: dict[str, Any]
) -> None:
    path = write(tmp_path_factory.mktemp("t"), json.dumps({**beside, "traceEvents": [*events, event()]}))
    said = ""
    try:
        said = read([path]).diagnosis.verdict.name
    except TraceError as refused:
        said = str(refused)
    assert said
    assert "\n" not in said


def test_a_trace_that_lasts_no_time_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps([event(dur=0), event(dur=0)]))
    with pytest.raises(TraceError, match="lasts no time"):
        read([path])
