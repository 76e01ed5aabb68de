"""How far off are plans of what others published? Every point of published.toml, planned with its settings.

    python -m benchmarks.published            # every point with its error, into results/published.json
    python -m benchmarks.published --json     # points, median_error, within_20 and the same of held-out points, for programs
    python -m benchmarks.published --docs     # the table and the plot, into docs/planning.md and docs/pictures/published.png

An error is of speed: above 0, the plan is quicker than what was published. Points marked `fit` chose a number
of one program, and no other did: those are held out. None is dropped. Loads no torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.pages import row as table_row
from benchmarks.pages import write_between
from benchmarks.report import write_report
from millstream.core.config import parse_size
from millstream.core.presets import MODELS
from millstream.core.topology import Topology
from millstream.planner.hardware import parse_fleet
from millstream.planner.software import SOFTWARE, Software
from millstream.planner.time import ChunkTime, chunk_time
from millstream.planner.workload import Workload

DATA = Path(__file__).parent / "published.toml"
PAGE = Path(__file__).parents[1] / "docs" / "planning.md"
PICTURE = PAGE.parent / "pictures" / "published.png"
NEAR = 0.10
FAR = 0.20
UNITS = {
    "fps": "FPS",
    "clip_s": "s a clip",
    "denoise_s": "s of steps",
    "step_s": "s a step",
    "calls_ms": "ms of calls",
}
UNITS["chunk_ms"] = "ms a chunk"


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """One point: what a source says of it, and what was planned."""

    said: Mapping[str, Any]
    planned: float

    @property
    def error(self) -> float:
        """Relative error of the planned speed: above 0, the plan is faster than the published value."""
        published = float(self.said["value"])
        faster = self.said["measures"] == "fps"
        return self.planned / published - 1 if faster else published / self.planned - 1

    @property
    def speed(self) -> float:
        """Published speed, converted to frames a second."""
        work = workload_of(self.said)
        value = float(self.said["value"])
        seconds = {
            "clip_s": 1.0,
            "denoise_s": 1.0,
            "step_s": len(work.stream.steps),
            "calls_ms": 1e-3,
            "chunk_ms": 1e-3,
        }
        return (
            value
            if self.said["measures"] == "fps"
            else work.chunk_frames / (value * seconds[self.said["measures"]])
        )

    @property
    def fitted(self) -> bool:
        return bool(self.said.get("fit", False))

    @property
    def name(self) -> str:
        said = self.said
        count = f"{said['count']}x" if said.get("count", 1) > 1 else ""
        shape = f"{said['model'].upper()} {said['size']}"
        seen = "clip" if said.get("clip") else f"window {said['window']}"
        steps = (
            f"{said['steps']} "
            f"{'step' if said['steps'] == 1 else 'steps'}{' x2' if said.get('guidance') else ''}"
        )
        rest = [
            said["precision"] if said["precision"] != "bf16" else "",
            "commit" if said.get("commit") else "",
        ]
        rest += ["tiny VAE" if said["vae"] == "tiny" else "", said.get("attention", "")]
        return f"{count}{said['gpu']}, {', '.join([shape, seen, steps, *(word for word in rest if word)])}"


def read_points(path: Path = DATA) -> list[dict[str, Any]]:
    """Each with what its source's table says of all."""
    sources = msgspec.toml.decode(path.read_bytes())["source"]
    return [
        {**{k: v for k, v in source.items() if k != "points"}, **point}
        for source in sources
        for point in source["points"]
    ]


def planned_point(said: Mapping[str, Any]) -> Published:
    work = workload_of(said)
    layout = Topology.parse(said.get("layout", "local"))
    fleet = parse_fleet(f"{said.get('count', 1)}x{said['gpu']}")
    return Published(said=said, planned=measure(chunk_time(work, fleet, layout), work, said["measures"]))


def measure(time: ChunkTime, work: Workload, what: str) -> float:
    return {
        "fps": 1e3 * work.chunk_frames / time.period_ms,
        "clip_s": (time.first_frame_ms + time.encode_ms) / 1e3,
        "denoise_s": time.mesh_ms / 1e3,
        "step_s": time.mesh_ms / len(work.stream.steps) / 1e3,
        "calls_ms": time.mesh_ms,
        "chunk_ms": time.period_ms,
    }[what]


def workload_of(said: Mapping[str, Any]) -> Workload:
    spec = MODELS[f"wan2.1-t2v-{said['model']}"]
    height, width = parse_size(said["size"])
    clip = bool(said.get("clip", False))
    stream = replace(
        spec.stream,
        height=height,
        width=width,
        frames_per_chunk=said["frames"],
        window=said["frames"] if clip else said["window"],
        steps=tuple(1000 * (1 - step / said["steps"]) for step in range(said["steps"])),
        anchor="decoded" if said.get("rebuild") else "off",
    )
    return Workload(
        spec=spec,
        stream=stream,
        precision="fp8" if said["precision"] == "fp8" else "native",
        software=software_of(said),
        commit=said.get("commit", False),
        video_in=said.get("video_in", False),
        stream_batch=said.get("stream_batch", False),
        whole_clip=clip,
        guidance=said.get("guidance", False) and not said.get("guidance_apart", False),
        decoder="tiny" if said["vae"] == "tiny" else "full",
        text_place=said.get("text", "device"),
    )


def software_of(said: Mapping[str, Any]) -> Software:
    software = SOFTWARE[said["software"]]
    if "attention" in said:
        software = replace(software, attention_kernel=said["attention"])
    if said["vae"] == "published":
        published = SOFTWARE["reference"]
        software = replace(software, conv_share=published.conv_share, vae_passes=published.vae_passes)
    return software


def summary(found: Sequence[Published]) -> dict[str, Any]:
    errors = [abs(point.error) for point in found]
    return {
        "count": len(found),
        "median_error": statistics.median(errors),
        "within_10": sum(error <= NEAR for error in errors) / len(errors),
        "within_20": sum(error <= FAR for error in errors) / len(errors),
        "bias": statistics.median(point.error for point in found),
    }


def record(found: Sequence[Published]) -> dict[str, Any]:
    held_out = [point for point in found if not point.fitted]
    return {
        **summary(found),
        "held_out": summary(held_out),
        "fitted": summary([point for point in found if point.fitted]),
        "by_gpu": _apart(held_out, "gpu"),
        "by_source": _apart(held_out, "name"),
        "points": [{**point.said, "planned": point.planned, "error": point.error} for point in found],
    }


def _apart(found: Sequence[Published], by: str) -> dict[str, Any]:
    kinds = dict.fromkeys(point.said[by] for point in found)
    return {kind: summary([point for point in found if point.said[by] == kind]) for kind in kinds}


def table(found: Iterable[Published]) -> list[str]:
    lines = ["| point | program | published | planned | | |", "|---|---|---|---|---|---|"]
    source = ""
    for point in found:
        said = point.said
        if said["name"] != source:
            source = said["name"]
            where = (
                f"[{source}]({said['url'].split()[0].rstrip(',')})"
                if said["url"].startswith("http")
                else source
            )
            lines.append(
                table_row([f"**{where}**", "", "", "", "", f"assumed: {said.get('assumed', 'nothing')}"])
            )
        error = f"{100 * point.error:+.0f}%"
        note = "fitted" if point.fitted else said.get("why", "")
        values = [f"{said['value']:g} {UNITS[said['measures']]}", f"{point.planned:.3g}"]
        lines.append(
            table_row(
                [
                    point.name,
                    said["software"],
                    *values,
                    f"**{error}**" if abs(point.error) > FAR else error,
                    note,
                ]
            )
        )
    return lines


def said_of(totals: Mapping[str, Any]) -> str:
    return (
        f"{totals['count']} points: median error {100 * totals['median_error']:.1f}%, "
        f"within 10% {100 * totals['within_10']:.0f}%, within 20% {100 * totals['within_20']:.0f}%, "
        f"median bias {100 * totals['bias']:+.1f}%."
    )


def page(found: Sequence[Published]) -> list[str]:
    totals = record(found)
    lines = [
        f"All {said_of(totals)}",
        f"Held out, {said_of(totals['held_out'])}",
        f"Fitted, {said_of(totals['fitted'])}",
        "",
    ]
    lines += ["| held out, by card | points | median error | median bias |", "|---|---|---|---|"]
    for gpu, each in totals["by_gpu"].items():
        cells = [gpu, str(each["count"]), f"{100 * each['median_error']:.0f}%", f"{100 * each['bias']:+.0f}%"]
        lines.append(table_row(cells))
    lines += ["", "<details><summary>Every point</summary>", "", *table(found), "", "</details>"]
    return lines


def draw(found: Sequence[Published], path: Path) -> None:
    """Published against planned, in frames a second; what is off by more than a fifth is named."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 7.0), layout="constrained")
    axes = figure.subplots()
    ends = (0.8 * min(point.speed for point in found), 1.3 * max(point.speed for point in found))
    axes.fill_between(
        ends, [0.8 * end for end in ends], [1.2 * end for end in ends], color="0.9", label="within 20%"
    )
    axes.plot(ends, ends, color="0.6", linewidth=1)
    for number, gpu in enumerate(dict.fromkeys(point.said["gpu"] for point in found)):
        mine = [point for point in found if point.said["gpu"] == gpu]
        colour = colormaps["tab20"](number)
        axes.scatter(
            [p.speed for p in mine], [p.speed * (1 + p.error) for p in mine], s=18, label=gpu, color=colour
        )
    for point in found:
        if abs(point.error) > FAR:
            label = f"{point.said.get('count', 1)}x{point.said['gpu']} {point.said['software']}"
            axes.annotate(
                label,
                (point.speed, point.speed * (1 + point.error)),
                fontsize=6,
                xytext=(4, 3),
                textcoords="offset points",
            )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=ends,
        ylim=ends,
        xlabel="published, frames a second",
        ylabel="planned",
    )
    axes.legend(fontsize=7, loc="upper left")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="for programs; writes nothing")
    parser.add_argument("--docs", action="store_true", help="into docs/planning.md, with the plot")
    options = parser.parse_args()
    found = [planned_point(said) for said in read_points()]
    if options.json:
        print(json.dumps(record(found), indent=2))
        return
    for point in found:
        beside = f"{point.said['software']:12} {point.name} {'fitted' if point.fitted else ''}"
        print(f"{100 * point.error:+7.1f}%  {point.said['value']:9g} {point.planned:9.2f}  {beside}")
    print("\n".join(line for line in page(found)[:3]))
    if options.docs:
        write_between(PAGE, "published", page(found))
        draw(found, PICTURE)
    write_report("published", {"data": DATA.name, "near": NEAR, "far": FAR}, record(found))


if __name__ == "__main__":
    main()
