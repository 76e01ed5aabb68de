"""The tables of docs/performance.md, from the results that are there.

python -m benchmarks.performance_page
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.ladder import RUNGS
from benchmarks.pages import report_of, row, write_tables
from benchmarks.report import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
CALLS = ("step", "commit")


def ladder() -> Iterator[str]:
    """Every stream that was measured, its rungs in their order."""
    floors = "calls | of floor | of even floor | decode | of floor"
    yield f"| stream | rung | frames a second | chunk ms | {floors} | else | first frame | GiB |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    names = [file.stem for file in RESULTS.glob("stream-*.json")]
    for stream in sorted(
        {name.rpartition("-w")[0] + "-w" + re.findall(r"-w(\d+)-", name)[0] for name in names if "-w" in name}
    ):
        for rung in RUNGS:
            if f"{stream}-{rung}" in names:
                yield rung_row(rung, report_of(f"{stream}-{rung}"))


def rung_row(rung: str, report: dict[str, Any]) -> str:
    measured = report["measured"]
    stream = report["configuration"]["stream"]
    phases = measured["phases"]
    chunk = measured["chunk_ms"]["p50"]
    calls = sum(phases[name]["ms"] for name in CALLS)
    decode = phases["decode"]["ms"]
    floors = [sum(phases[name].get(f"{kind}_ms", 0.0) for name in CALLS) for kind in ("floor", "even_floor")]
    cells = [
        f"{report['configuration']['model']} {stream['height']}x{stream['width']}, window {stream['window']}",
        rung,
        f"{measured['fps']:.1f}",
        f"{chunk:.0f}",
        f"{calls:.0f}",
        *(f"{calls / floor:.3f}" if floor else "" for floor in floors),
        f"{decode:.1f}",
        f"{phases['decode']['of_floor']:.2f}" if "of_floor" in phases["decode"] else "",
        f"{max(0.0, chunk - calls - decode) / chunk:.1%}",
        f"{measured['first_frame_s']['warm']:.2f} s",
        f"{measured['memory_mib']['peak'] / 1024:.1f}",
    ]
    return row(cells)


def peers() -> Iterator[str]:
    notes: dict[str, str] = {}
    yield "| stream | who | chunk ms | calls | decode | ours in bf16 is faster | in fp8 |"
    yield "|---|---|---|---|---|---|---|"
    for file in sorted(RESULTS.glob("compare-*.json")):
        report = report_of(file.stem)
        measured = report["measured"]
        config = report["configuration"]
        stream = f"{config['model']} {config['size']}, window {config['window']}"
        for name, found in (measured["peers"] | measured["ours"]).items():
            if "cannot_run" in found:
                yield f"| {stream} | {name} | {found['cannot_run']} | | | | |"
                continue
            times = [measured["times_faster"][way].get(name) for way in ("bf16", "fp8")]
            ratios = [f"{each['chunk']:.2f} times" if each else "" for each in times]
            package, *setup = name.split(", ")
            label = (
                ", ".join([f"{package} {found['version']}", *setup])
                if "version" in found
                else f"ours, {name}"
            )
            cells = [
                stream,
                label,
                *(f"{found[key]:.0f}" for key in ("chunk_ms", "calls_ms", "decode_ms")),
                *ratios,
            ]
            yield row(cells)
            if "note" in found:
                replaced = f"; replaced: {found['replaced']}" if found.get("replaced") else ""
                notes[package] = f"{found['note']}{replaced}"
    yield ""
    yield from (f"- *{package}*: {note}." for package, note in notes.items())


def quality() -> Iterator[str]:
    yield "| stream | compared | latents, relative | mean | largest | PSNR dB | lowest |"
    yield "|---|---|---|---|---|---|---|"
    for file in sorted(RESULTS.glob("quality-*.json")):
        report = report_of(file.stem)
        for compared, found in report["measured"]["streams"].items():
            numbers = [f"{found[f'latents_{key}']:.4f}" for key in ("relative", "mean", "largest")]
            numbers += [f"{found[key]:.1f}" for key in ("psnr_db", "psnr_db_lowest")]
            yield row([file.stem.removeprefix("quality-"), compared, *numbers])


def sessions() -> Iterator[str]:
    yield "| sessions of the 1.3B | frames a second of all | MiB of a further one | declared |"
    yield "|---|---|---|---|"
    for file in sorted(RESULTS.glob("sessions-*.json")):
        report = report_of(file.stem)
        measured = report["measured"]
        stream = report["configuration"]["stream"]
        how = "in shared calls" if measured["together"] else "in turns"
        memory = measured["memory_mib"]
        yield row(
            [
                f"{measured['sessions']} at {stream['height']}x{stream['width']}, {how}",
                f"{measured['fps']:.1f}",
                f"{memory['further']:.0f}",
                f"{memory['declared']:.0f}",
            ]
        )


NAMES = {"raw": "raw", "jpeg": "JPEG", "mp4": "H.264"}


def served() -> Iterator[str]:
    """Yield the table of rates that viewers get, beside the rate of `bench stream` in the same run."""
    yield "| stream | `bench stream` | served | first chunk | together | promised | lowest continuity |"
    yield "|---|---|---|---|---|---|---|"
    for file in sorted(RESULTS.glob("served-*.json")):
        measured = report_of(file.stem)["measured"]
        streams = measured["one_unpaced_stream"]
        crowds = measured["crowds"]
        together = [
            f"{each['unpaced_fps']:.1f} ({each['people']})" for each in crowds if "unpaced_fps" in each
        ]
        cells = [
            file.stem.removeprefix("served-"),
            f"{measured['bench_stream']['fps']:.1f}",
            ", ".join(f"{each['fps']:.1f} ({NAMES[name]})" for name, each in streams.items()),
            f"{max(each['first_chunk_s'] for each in streams.values()):.2f} s",
            ", ".join(together),
            ", ".join(f"{each['promised_fps']:.1f} ({each['people']})" for each in crowds),
            f"{min(each['continuity'] for each in crowds):.3f}",
        ]
        yield row(cells)


TABLES = {"ladder": ladder, "served": served, "peers": peers, "quality": quality, "sessions": sessions}


if __name__ == "__main__":
    write_tables(PAGE, TABLES)
