"""Events are decoded by their types, and mended one by one where they are not written so: both ways say the
same."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millstream.profiler.costs import op_cost
from millstream.profiler.event import EVENTS, Arguments, TraceEvent, mended
from millstream.profiler.trace import Trace, read_trace
from tests.soak.mutated_traces import original


def columns(trace: Trace) -> dict[str, Any]:
    events = vars(trace.events) | vars(trace.events.work) | vars(trace.memory)
    return {name: column.tolist() for name, column in events.items() if name != "work"} | {
        "names": trace.names
    }


def written(folder: Path, events: list[dict[str, Any]], *, spoiled: bool) -> Path:
    """Spoiled: the last event has a name that JSON does not allow, and so none is decoded with the others."""
    text = json.dumps({"traceEvents": [*events, {"ph": "M", "name": "the last"}]})
    path = folder / f"{spoiled}.json"
    path.write_text(text.replace("the last", "the\nlast") if spoiled else text)
    return path


@pytest.mark.parametrize("seed", range(5))
def test_a_trace_says_the_same_decoded_at_once_or_mended_one_by_one(tmp_path: Path, seed: int) -> None:
    events = original(random.Random(seed))["traceEvents"]
    at_once, mended_ones = (
        read_trace(written(tmp_path, events, spoiled=spoiled)) for spoiled in (False, True)
    )
    assert columns(at_once) == columns(mended_ones)
    assert len(at_once.events.work.of) > 0


@pytest.mark.parametrize(
    "strange",
    [
        {"pid": [1], "tid": {"a": 2}},
        {"pid": 1.5, "tid": True},
        {"args": None},
        {"args": [1]},
        {"name": None, "cat": 7},
        {"ph": 3},
        {"ts": "soon", "dur": None},
        {"ts": 10**400, "dur": True},
    ],
)
def test_what_is_of_another_type_is_mended_as_far_as_it_can_be(strange: dict[str, Any]) -> None:
    event = mended({"ph": "X", "ts": 1, "dur": 2, **strange})
    assert isinstance(event.name, str)
    assert isinstance(event.ts, float)
    assert isinstance(event.args, Arguments)
    assert hash((event.pid, event.tid))


def test_ids_keep_all_their_digits(tmp_path: Path) -> None:
    for link in (7, 2**31, 2**62, -(2**63)):
        event = {
            "ph": "X",
            "cat": "kernel",
            "name": "k",
            "ts": 1.0,
            "dur": 2.0,
            "args": {"correlation": link, "External id": 3},
        }
        trace = read_trace(written(tmp_path, [event], spoiled=False))
        assert trace.events.link.tolist() == [link]
        assert trace.events.origin.tolist() == [3]


def test_an_event_is_kept_in_fifty_bytes(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, original(random.Random(1))["traceEvents"], spoiled=False))
    kept = [*vars(trace.events).values(), *vars(trace.events.work).values()]
    assert sum(column.nbytes for column in kept if isinstance(column, np.ndarray)) < 50 * len(trace.events)


def test_a_slice_that_is_open_does_not_hold_on_to_the_text_around_it() -> None:
    event = {"ph": "B", "name": "x", "args": {"Input Dims": [[2, 3]], "Input type": ["float"]}}
    text = json.dumps([{**event, "name": 1_000_000 * "x"}, event])
    tracemalloc.start()
    kept = EVENTS.decode(text.encode())[1].detached()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert bytes(kept.args.dims) == b"[[2, 3]]"
    assert held < 100_000, f"{held} bytes"


@pytest.mark.parametrize(
    "name", ["aten::mm", "aten::add", "aten::cudnn_convolution", "aten::_flash_attention_forward"]
)
@pytest.mark.parametrize(
    "dims",
    [[[10**200, 10**200]] * 3, [[10**99] * 4] * 3, [[1, 2, 3, 4]], [[-5, 3], [3, -4]], [[2**62, 2]] * 3],
)
def test_shapes_that_no_tensor_has_are_no_work(name: str, dims: list[list[int]]) -> None:
    args = {"Input Dims": dims, "Input type": ["float"] * len(dims), "Concrete Inputs": ["[1e400]"] * 9}
    flops, moved = op_cost(name, mended({"args": args}).args)
    assert 0 <= flops < np.inf
    assert 0 <= moved < np.inf


@pytest.mark.parametrize(
    "args", [{"bytes": 10**400}, {"bytes": -4}, {"In msg nelems": 10**400, "dtype": "BFloat16"}]
)
def test_a_size_that_cannot_be_is_no_size(tmp_path: Path, args: dict[str, Any]) -> None:
    event = {"ph": "X", "cat": "gpu_memcpy", "name": "k", "ts": 1.0, "dur": 2.0, "args": args}
    assert len(read_trace(written(tmp_path, [event], spoiled=False)).events.work.of) == 0


def test_an_event_that_says_nothing_is_one_too() -> None:
    assert EVENTS.decode(b"[{}]")[0].ph == mended({}).ph == TraceEvent().ph == ""
