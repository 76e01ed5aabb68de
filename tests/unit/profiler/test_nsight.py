"""Exports of Nsight Systems: judged like the same run in a trace of Kineto's."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from millstream.core.errors import TraceError
from millstream.planner.hardware import DEVICES
from millstream.profiler.reading import read
from millstream.profiler.simulated_rank import SimulatedRank
from millstream.profiler.trace import read_trace


def run() -> SimulatedRank:
    rank = SimulatedRank(0, DEVICES["h200"], random.Random(3))
    for _ in range(40):
        with rank.note("step"):
            rank.op("aten::mm", "nvjet_tst_gemm", 100.0)
            rank.item()
            rank.python(400.0)
    return rank


def exported(rank: SimulatedRank, path: Path) -> Path:
    """The same events in the tables, columns and nanoseconds of `nsys export`."""
    database = sqlite3.connect(path)
    database.executescript(
        """
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
            (start INT, end INT, deviceId INT, streamId INT, correlationId INT, shortName INT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY
            (start INT, end INT, deviceId INT, streamId INT, correlationId INT, bytes INT, copyKind INT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT);
        CREATE TABLE NVTX_EVENTS (start INT, end INT, globalTid INT, text TEXT);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200');
        """
    )
    names = {name: index for index, name in enumerate(sorted({event["name"] for event in rank.events}))}
    database.executemany(
        "INSERT INTO StringIds VALUES (?, ?)", [(index, name) for name, index in names.items()]
    )
    for event in rank.events:
        begin = round(1e3 * event["ts"])
        end = round(1e3 * (event["ts"] + event["dur"]))
        link = event["args"].get("correlation", 0)
        name = names[event["name"]]
        row: tuple[int | str, ...]
        match event["cat"]:
            case "kernel":
                table = "CUPTI_ACTIVITY_KIND_KERNEL"
                row = (begin, end, 0, event["tid"], link, name)
            case "gpu_memcpy":
                table = "CUPTI_ACTIVITY_KIND_MEMCPY"
                row = (begin, end, 0, event["tid"], link, 4, 2)
            case "cuda_runtime":
                table = "CUPTI_ACTIVITY_KIND_RUNTIME"
                row = (begin, end, 1, link, name)
            case "user_annotation":
                table = "NVTX_EVENTS"
                row = (begin, end, 1, event["name"])
            case _:
                continue
        database.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)
    database.commit()
    database.close()
    return path


def test_an_export_of_nsight_is_judged_as_the_same_run_in_a_trace(tmp_path: Path) -> None:
    rank = run()
    kineto = read([rank.write(tmp_path, 1)])
    nsight = read([exported(rank, tmp_path / "report.sqlite")])
    assert nsight.device is not None
    assert nsight.device.name == "H200"
    assert nsight.diagnosis.verdict.name == kineto.diagnosis.verdict.name == "CPU-bound"
    for cause, share in kineto.group.ranks[0].shares.items():
        assert nsight.group.ranks[0].shares[cause] == pytest.approx(share, abs=0.01), cause
    assert "step" in nsight.group.ranks[0].trace.names


def test_a_database_of_something_else_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE people (name TEXT)")
    database.commit()
    database.close()
    with pytest.raises(TraceError, match="has no CUDA events; record with nsys profile"):
        read_trace(path)


def test_a_broken_database_is_refused_and_a_view_is_never_run(tmp_path: Path) -> None:
    whole = exported(run(), tmp_path / "report.sqlite")
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(whole.read_bytes()[:5000])
    with pytest.raises(TraceError, match="cannot be read as an export of Nsight Systems"):
        read_trace(broken)
    path = tmp_path / "view.sqlite"
    database = sqlite3.connect(path)
    endless = (
        "WITH RECURSIVE more(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM more) SELECT start FROM more"
    )
    database.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}")
    database.commit()
    database.close()
    with pytest.raises(TraceError, match="has no CUDA events"):
        read_trace(path)
