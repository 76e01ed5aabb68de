"""Write measurements on an H200 into the chapters of the course that mention them, from the stored results.

python -m benchmarks.course_results
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.pages import report_of, write_between
from course.catalogue import find_chapter
from millstream.core.config import GIB

MARK = "benchmarks.course_results"
STREAM = "millstream bench stream --model wan2.1-t2v-1.3b --weights random --fast on"
LARGE = "--size 480x832 --window 9"
SMALL = "--size 192x320 --window 9"


def lines_of(key: str) -> list[str]:
    """Return the lines that a chapter's page shows."""
    return ["```text", *SAID[key](), "```"]


def _measured(name: str) -> Any:
    """Return the measurements of a result, which must be from an H200."""
    found = report_of(name)
    assert "H200" in found["hardware"]["gpu"], f"{name} was measured on {found['hardware']}"
    return found["measured"]


def _rates() -> Iterator[str]:
    device = report_of("profile-h200")["device"]
    found = device["measured"]
    yield "$ millstream plan calibrate --device cuda"
    yield f"memory: {found['bandwidth_tb_s']:.2f} TB/s of {device['bandwidth_tb_s']:g} on the datasheet"
    yield f"products in bf16: {found['matmul_tflops']:.0f} TFLOP/s of {device['bf16_tflops']:g}"
    yield f"a launch: {found['launch_us']:.1f} us"


def _activations() -> Iterator[str]:
    cases = _measured("train_step")["cases"]
    yield "$ python -m benchmarks.train_step"
    for how in ("none", "selective", "full"):
        case = cases[f"1.3b-{how}"]
        took = f"{case['seconds']:.2f} s, the planner says {case['planned_seconds']:.2f}"
        held = f"{case['peak_gib']:.1f} GiB at most, the planner says {case['planned_peak_gib']:.1f}"
        yield f"1.3B, forward and back, activations made again: {how:10} {took}; {held}"


def _sessions() -> Iterator[str]:
    for size, words, count in (("", LARGE, 4), ("-192x320", SMALL, 8)):
        turns, together = (_measured(f"sessions-{count}{how}{size}")["fps"] for how in ("", "-together"))
        yield f"$ {STREAM} {words} --sessions {count}, then with --together"
        yield (
            f"in turns {turns:.1f} pictures a second in all, in shared calls {together:.1f}: "
            f"{together / turns:.2f} times"
        )


def _forks() -> Iterator[str]:
    found = _measured("forks-wan2.1-t2v-1.3b")
    branches = report_of("forks-wan2.1-t2v-1.3b")["configuration"]["branches"]
    yield (
        f"$ python -m benchmarks.forks --device cuda --model wan2.1-t2v-1.3b --weights random {LARGE} "
        "--fast on"
    )
    yield (
        f"a fork takes {found['fork_ms']['median']:.3f} ms; one session holds "
        f"{found['one_session_bytes'] / GIB:.2f} GiB"
    )
    yield (
        f"with {branches} branches beside it, before any of them writes: "
        f"{found['with_branches_bytes'] / GIB:.2f} GiB"
    )


def _precision() -> Iterator[str]:
    found = _measured("train_precision")["runs"]
    yield "$ python -m benchmarks.train_precision"
    for name in ("bf16", "fp16"):
        run = found[name]
        yield (
            f"losses of {name} against float32: {run['mean_percent']:.2f}% off on average, "
            f"{run['most_percent']:.2f}% at most"
        )


def _decoder() -> Iterator[str]:
    found = _measured("decoder-480x832")["ms"]
    yield "$ python -m benchmarks.decoder"
    plain = found["plain"]
    ours = found["own convolution"]
    yield f"12 pictures of 480x832: {plain:.0f} ms as it is written, {ours:.0f} ms as the engine runs it"


def _phases() -> dict[str, Any]:
    found: dict[str, Any] = _measured("stream-1.3b-480x832-w9-on")["phases"]
    return found


def _attention() -> Iterator[str]:
    low = _measured("stream-1.3b-480x832-w9-low-attention")["phases"]
    yield "$ python -m benchmarks.ladder --model wan2.1-t2v-1.3b --size 480x832 --window 9"
    yield (
        f"four steps of a chunk: {_phases()['step']['ms']:.0f} ms; with attention in 8 bits "
        f"{low['step']['ms']:.0f} ms"
    )


def _steps() -> Iterator[str]:
    step, commit = (_phases()[name]["ms"] for name in ("step", "commit"))
    yield f"$ {STREAM} {LARGE}"
    yield f"a chunk of 12 pictures: four steps {step:.0f} ms, the commit {commit:.0f} ms"
    found = _measured("self_forcing")
    yield "$ python -m benchmarks.self_forcing"
    rolled = found["phases_s"]["rollouts, both turns"]
    yield (
        f"an update by self-forcing: {found['update_s']:.1f} s, {rolled:.1f} of them to roll out; "
        f"{found['peak_gib']:.0f} GiB"
    )


def _overlap() -> Iterator[str]:
    phases = _phases()
    calls = phases["step"]["ms"] + phases["commit"]["ms"]
    decode = phases["decode"]["ms"]
    yield f"$ {STREAM} {LARGE}"
    yield (
        f"a chunk on one device: model calls {calls:.0f} ms, pictures {decode:.0f} ms, all else "
        f"{_rest(phases):.1f} ms"
    )
    yield (
        f"so a front apart could give a chunk every {max(calls, decode):.0f} ms instead of "
        f"{calls + decode:.0f}: not measured"
    )


def _rest(phases: dict[str, Any]) -> float:
    return sum((each["ms"] for name, each in phases.items() if name not in ("step", "commit", "decode")), 0.0)


def _promises() -> Iterator[str]:
    found = _measured("served-1.3b-480x832-bf16")
    yield f"$ python -m benchmarks.served --model wan2.1-t2v-1.3b --weights random {LARGE} --fast on"
    yield (
        f"the device makes {found['bench_stream']['fps']:.1f} pictures a second; viewers of it, at equal "
        "rates:"
    )
    for crowd in found["crowds"]:
        seen = f"pictures moved {crowd['continuity']:.1%} of the time"
        yield f"promised to {crowd['people']} of them, {crowd['promised_fps']:.1f} in all: {seen}"


SAID: dict[str, Callable[[], Iterator[str]]] = {
    "4": _rates,
    "6": _activations,
    "8": _sessions,
    "9": _forks,
    "lab-04": _precision,
    "V1": _decoder,
    "V2": _attention,
    "V3": _steps,
    "V4": _overlap,
    "V5": _promises,
}


def main() -> None:
    for key in SAID:
        write_between(find_chapter(key).page, MARK, lines_of(key))


if __name__ == "__main__":
    main()
