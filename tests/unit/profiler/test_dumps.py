"""Snapshots of memory and dumps of the flight recorder: read as plain data, and nothing of a stranger's is
run."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from millstream.commands.profile.dumps import are_dumps, run_read_dumps
from millstream.core.errors import TraceError
from millstream.mesh.flight_recorder import read_flights
from millstream.profiler.dumps.plain import load_plain
from millstream.profiler.dumps.snapshot import MIB, read_snapshot


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_names_code_is_refused_and_the_code_is_not_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [Harmful(made)]}))
    with pytest.raises(TraceError, match="not a dump of plain data"):
        load_plain(path)
    assert not made.exists()


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_pickle_that_is_cut_off_is_refused_in_one_line(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot())[:cut])
    with pytest.raises(TraceError) as refused:
        load_plain(path)
    assert "\n" not in str(refused.value)


def snapshot() -> dict[str, Any]:
    frames = [
        {"filename": "/site-packages/torch/nn/functional.py", "line": 9, "name": "linear"},
        {"filename": "/home/me/app/model.py", "line": 41, "name": "forward"},
    ]
    held = {"size": 30 * MIB, "state": "active_allocated", "frames": frames}
    idle = {"size": 20 * MIB, "state": "inactive", "frames": []}
    other = {"size": 10 * MIB, "state": "active_allocated", "frames": []}
    events = [
        {"action": "alloc", "size": 30 * MIB},
        {"action": "alloc", "size": 20 * MIB},
        {"action": "alloc", "size": 10 * MIB},
        {"action": "oom", "size": 99 * MIB},
        {"action": "free_completed", "size": 20 * MIB},
    ]
    return {"segments": [{"total_size": 60 * MIB, "blocks": [held, idle, other]}], "device_traces": [events]}


def test_a_snapshot_says_who_holds_memory_what_lies_idle_and_what_the_peak_was() -> None:
    found = read_snapshot(snapshot())
    assert (found.reserved_mib, found.allocated_mib, found.largest_free_mib) == (60, 40, 20)
    assert found.idle_share == pytest.approx(1 / 3)
    assert (found.peak_mib, found.out_of_memory) == (60, 1)
    assert found.owners == (("app/model.py:41 forward", 30.0), ("recorded without a stack", 10.0))


def flight(*states: str, name: str = "nccl:all_reduce") -> dict[str, Any]:
    common = {"process_group": ["0", "default_pg"], "input_sizes": [[8]], "is_p2p": False}
    entries = [
        {**common, "collective_seq_id": n, "profiling_name": name, "state": state}
        for n, state in enumerate(states)
    ]
    return {"version": "2.4", "entries": entries}


def test_the_flight_recorder_says_who_never_came() -> None:
    ranks = [flight("completed", "started"), flight("completed", "started"), flight("completed")]
    (line,) = read_flights(dict(enumerate(ranks))).findings
    assert line == "ranks 0, 1 are in nccl:all_reduce [[8]], collective 1 of group 0; rank 2 never came"
    assert read_flights(dict.fromkeys(range(3), flight("completed"))).findings == ()


def test_the_flight_recorder_says_that_ranks_called_different_things() -> None:
    (line,) = read_flights({0: flight("started"), 1: flight("started", name="nccl:broadcast")}).findings
    assert "ranks called different things: rank 0 nccl:all_reduce" in line


def test_profile_read_takes_dumps_and_leaves_traces_to_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = tmp_path / "m.pickle"
    flown = tmp_path / "f.json"
    trace = tmp_path / "t.json"
    memory.write_bytes(pickle.dumps(snapshot()))
    flown.write_text(json.dumps(flight("completed", "started")))
    trace.write_text(json.dumps({"traceEvents": [{"name": "entries"}]}))
    assert [are_dumps([path]) for path in (memory, flown, trace, tmp_path / "none")] == [
        True,
        True,
        False,
        False,
    ]
    run_read_dumps([memory], as_json=False)
    assert "40 MiB held of 60 reserved; 33% of what is reserved lies idle" in capsys.readouterr().out
    run_read_dumps([flown], as_json=True)
    assert json.loads(capsys.readouterr().out)["findings"] == [
        "rank 0 is in nccl:all_reduce [[8]], collective 1 of group 0, which did not end"
    ]
    with pytest.raises(TraceError, match="neither a snapshot of memory"):
        run_read_dumps([memory, flown], as_json=False)
    flown.write_text(json.dumps(flight()))
    with pytest.raises(TraceError, match="TORCH_FR_BUFFER_SIZE=2000") as refused:
        run_read_dumps([flown], as_json=False)
    assert "\n" not in str(refused.value)
