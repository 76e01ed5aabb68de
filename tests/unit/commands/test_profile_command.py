"""`millstream profile`: a run is captured, read, reported and compared, and what cannot be done is said in
one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from millstream.commands.main import app
from millstream.commands.profile.run import hear_the_compiler
from millstream.profiler.against_plan import against_plan
from millstream.profiler.compilation import CompilerLog, read_compilation
from millstream.profiler.reading import read
from millstream.profiler.simulated_workloads import WORKLOADS
from millstream.profiler.trace import read_trace

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def machine_that_was_never_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))


def profile(*words: str) -> Result:
    return CliRunner().invoke(app, ["profile", *words])


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of two chunks of a tiny model."""
    out = tmp_path_factory.mktemp("profile") / "trace.json.gz"
    result = profile(
        "run",
        "--model",
        "wan-tiny",
        "--weights",
        "random",
        "--device",
        "cpu",
        "--chunks",
        "2",
        "--out",
        str(out),
    )
    assert result.exit_code == 0, result.output
    return out


def slower(path: Path, folder: Path, factor: float) -> Path:
    """The same trace, stretched."""
    record = json.loads(gzip.decompress(path.read_bytes()))
    for event in record["traceEvents"]:
        for key in ("ts", "dur"):
            if key in event:
                event[key] *= factor
    (folder / "slower.json").write_text(json.dumps(record))
    return folder / "slower.json"


def test_a_run_is_captured_with_its_chunks_phases_and_memory(taken: Path) -> None:
    found = read([taken])
    assert found.phases.chunks == 2
    assert set(found.phases.by_name) == {"noise", "step", "commit", "decode", "convert"}
    (use,) = found.memory
    assert use is not None
    assert use.peak_mib > 0
    assert sum(size for _, size in use.filled_by) == pytest.approx(use.peak_mib, rel=0.05)
    ours = found.group.ranks[0].trace.ours
    assert ours["model"] == "wan-tiny"
    assert ours["slower_than_unprofiled"] > 0.5


def test_what_is_fast_is_profiled_as_such(tmp_path: Path) -> None:
    out = tmp_path / "fast.json"
    words = [
        "--model",
        "wan-tiny",
        "--weights",
        "random",
        "--device",
        "cpu",
        "--chunks",
        "1",
        "--out",
        str(out),
    ]
    assert profile("run", *words, "--fast", "blocks,decoder", "--precision", "fp32").exit_code == 0
    ours = read([out]).group.ranks[0].trace.ours
    assert (ours["fast"], ours["dtype"]) == ("blocks,decoder", "float32")


def test_the_spans_of_a_run_are_a_trace_of_their_own(tmp_path: Path) -> None:
    out = tmp_path / "spans.json"
    words = [
        "--model",
        "wan-tiny",
        "--weights",
        "random",
        "--device",
        "cpu",
        "--chunks",
        "2",
        "--spans",
        "--out",
        str(out),
    ]
    assert profile("run", *words).exit_code == 0
    found = read([out])
    assert found.phases.chunks >= 2
    assert found.group.ranks[0].shares["work"] > 0.5
    assert found.roofs[0].known_ms == 0


def test_a_verdict_has_evidence_confidence_and_the_most_it_could_gain(taken: Path) -> None:
    result = profile("read", str(taken))
    assert result.exit_code == 0, result.output
    assert "confidence" in result.output.splitlines()[0]
    assert "at most" in result.output
    assert "of the wall" in result.output


def test_programs_get_the_same_verdict(taken: Path) -> None:
    record = json.loads(profile("read", str(taken), "--json").output)
    assert record["format"] == "millstream-reading"
    assert record["verdict"]["name"] == profile("read", str(taken)).output.split(",")[0]
    assert sum(record["ranks"][0]["shares"].values()) == pytest.approx(1.0)


def test_a_report_is_one_file_that_loads_nothing(taken: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert profile("read", str(taken), "--html", str(page)).exit_code == 0
    text = page.read_text()
    for part in ("Timeline", "Where the wall went", "Chunks", "Against the ceilings", "Memory", "<svg"):
        assert part in text
    assert "src=" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_a_phase_that_is_counted_as_a_whole_is_shown_everywhere(tmp_path: Path) -> None:
    trace = str(Path(__file__).parents[2] / "fixtures" / "traces" / "fast-stream.json.gz")
    page = tmp_path / "report.html"
    shown = profile("read", trace, "--html", str(page))
    assert shown.exit_code == 0, shown.output
    record = json.loads(profile("read", trace, "--json").output)
    assert [phase["name"] for phase in record["counted_phases"]] == ["step", "commit", "decode"]
    for phase in record["counted_phases"]:
        said = f"{phase['name']} {100 * phase['reached']:.0f}%"
        assert said in shown.output
        assert said in page.read_text()
    assert "of the ceilings" in shown.output
    assert "of the ceilings" in page.read_text()


def test_a_report_of_many_ranks_shows_who_waits(tmp_path: Path) -> None:
    workload = next(w for w in WORKLOADS if w.expected == "straggler")
    paths = [str(path) for path in workload.write(tmp_path, 7)]
    page = tmp_path / "report.html"
    assert profile("read", *paths, "--html", str(page)).exit_code == 0
    assert "came last" in page.read_text()


def test_a_run_beside_itself_has_not_changed(taken: Path) -> None:
    result = profile("diff", str(taken), str(taken), "--gate", "0%")
    assert result.exit_code == 0
    assert "+0.0%" in result.output


def test_a_slower_run_fails_the_gate_and_a_wider_gate_lets_it_pass(taken: Path, tmp_path: Path) -> None:
    after = slower(taken, tmp_path, 1.2)
    assert profile("diff", str(taken), str(after), "--gate", "5%").exit_code == 1
    assert profile("diff", str(taken), str(after), "--gate", "25%").exit_code == 0
    assert profile("diff", str(after), str(taken), "--gate", "5%").exit_code == 0, "quicker is no regression"
    record = json.loads(profile("diff", str(taken), str(after), "--json").output)
    assert record["regressed"] is True
    assert next(c for c in record["changes"] if c["what"] == "a chunk, ms")["share"] == pytest.approx(
        0.2, abs=1e-3
    )


def test_a_plan_stands_beside_what_happened(taken: Path, tmp_path: Path) -> None:
    words = ["--model", "wan-tiny", "--gpus", "laptop-cpu", "--json"]
    plan = tmp_path / "plan.json"
    plan.write_text(CliRunner().invoke(app, ["plan", *words]).output)
    record = json.loads(profile("read", str(taken), "--plan", str(plan), "--json").output)
    lines = {line["what"]: line for line in record["plan"]}
    assert {"mesh", "decode", "period", "working set"} <= set(lines)
    for line in lines.values():
        assert line["miss"] == pytest.approx(line["planned"] / line["measured"] - 1)
    for other, said in (
        (("--size", "64x64"), "of size 32x32 and the plan of 64x64"),
        (("--window", "12"), "the plan of 12"),
    ):
        plan.write_text(CliRunner().invoke(app, ["plan", *words, *other]).output)
        refused = profile("read", str(taken), "--plan", str(plan))
        assert refused.exit_code == 2
        assert said in refused.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--chunks", "0"], "--chunks must be 1 to 64"),
        (["run", "--out", "trace.txt"], "must end in .json"),
        (["run", "--model", "nobody"], "'nobody'"),
        (["read", "{trace}", "{trace}"], "rank 0 was given more than once"),
        (["read", "{trace}", "--gpu", "abacus"], "'abacus' is unknown"),
        (["read", "{trace}", "--plan", "{trace}"], "is not a plan"),
        (["read", "{trace}", "--stages", "4"], "go together"),
        (["read", "{trace}", "--log", "nowhere.log"], "cannot be read"),
        (["diff", "{trace}", "{trace}", "--gate", "much"], "--gate must be a share"),
        (["diff", "{trace}", "nowhere.json"], "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_one_line(taken: Path, words: list[str], said: str) -> None:
    result = profile(*(word.format(trace=taken) for word in words))
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


def test_graph_breaks_and_recompiles_are_told_with_their_lines(tmp_path: Path) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    torch._dynamo.reset()
    compiled = torch.compile(broken, backend="eager", dynamic=False)
    with (
        hear_the_compiler() as heard,
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler,
    ):
        for size in (3, 4):
            compiled(torch.ones(size))
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    found = read_compilation(read_trace(tmp_path / "trace.json"), heard.places())
    assert found is not None
    assert found.ms > 0
    assert found.recompiled >= 1
    kinds = {place.kind: place for place in found.places}
    assert set(kinds) == {"break", "recompile"}
    line = broken.__code__.co_firstlineno + 2
    assert kinds["break"].where == f"{__file__}:{line}"
    assert "size mismatch" in kinds["recompile"].reason


def test_a_compilers_log_counts_places_and_is_bounded() -> None:
    log = CompilerLog()
    for number in range(1000):
        log.feed(f"Graph break in user code at model.py:{number}")
    assert len(log.places()) <= 201
    assert sum(place.times for place in log.places()) == 1000


def test_memory_at_the_peak_is_named_after_what_was_under_way(tmp_path: Path) -> None:
    def allocation(at: float, size: int, total: int, address: int) -> dict[str, Any]:
        args = {
            "Bytes": size,
            "Total Allocated": total,
            "Total Reserved": 2 * total,
            "Addr": address,
            "Device Id": 0,
        }
        return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "args": args}

    mib = 2**20
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "millstream.decode",
            "pid": 1,
            "tid": 1,
            "ts": 10,
            "dur": 20,
        },
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 40, "dur": 20},
        allocation(12, 3 * mib, 8 * mib, 1),
        allocation(45, 2 * mib, 10 * mib, 2),
        allocation(50, -2 * mib, 8 * mib, 2),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (use,) = read([path]).memory
    assert use is not None
    assert use.peak_mib == 10
    assert dict(use.filled_by) == {"before the trace": 5.0, "decode": 3.0, "aten::mm": 2.0}


def test_traces_that_were_not_taken_alike_are_not_compared(taken: Path, tmp_path: Path) -> None:
    other = WORKLOADS[0].write(tmp_path, 3)[0]
    result = profile("diff", str(taken), str(other))
    assert result.exit_code == 2
    assert "taken alike" in result.output


def test_traces_without_chunks_are_compared_by_the_wall(tmp_path: Path) -> None:
    before = WORKLOADS[0].write(tmp_path, 3)[0].rename(tmp_path / "before.json")
    record = json.loads(before.read_text())
    for event in record["traceEvents"]:
        event["ts"], event["dur"] = 2 * event["ts"], 2 * event["dur"]
    (tmp_path / "after.json").write_text(json.dumps(record))
    found = json.loads(profile("diff", str(before), str(tmp_path / "after.json"), "--json").output)
    assert found["regressed"]
    assert found["changes"][0]["what"] == "wall, ms"
    assert found["changes"][0]["share"] == pytest.approx(1.0)


def test_on_an_accelerator_a_plans_whole_memory_is_compared(tmp_path: Path) -> None:
    paths = WORKLOADS[0].write(tmp_path, 3)
    record = json.loads(paths[0].read_text())
    begin = record["traceEvents"][0]["ts"]
    args = {
        "Bytes": 2**30,
        "Total Allocated": 30 * 2**30,
        "Total Reserved": 40 * 2**30,
        "Addr": 1,
        "Device Id": 0,
    }
    record["traceEvents"].append(
        {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": begin, "args": args}
    )
    paths[0].write_text(json.dumps(record))
    plan = {"memory_gib": {"mesh": {"weights": 20.0, "window": 7.0}, "front": {"VAE": 9.0}}}
    (line,) = against_plan(read(paths), plan)
    assert (line.planned, line.measured) == (27 * 1024, 30 * 1024)
    assert line.miss == pytest.approx(-0.1)
