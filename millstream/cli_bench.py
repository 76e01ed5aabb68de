"""`millstream bench stream`, `bench quality` and `bench overlap`: how their options are spelled. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli_options import Fast, ModelOptions, Precision, ShapeOptions, grouped
from millstream.cli_parts import TopologyName, parse_numbers, plain_errors
from millstream.core.errors import ConfigError

Json = Annotated[bool, typer.Option("--json", help="For programs.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write the figures as JSON too.", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class PlainOptions(ModelOptions):
    """What is measured is plain unless something else is asked for."""

    precision: Precision = "bf16"
    fast: Fast = "off"


@dataclass(frozen=True, kw_only=True)
class FastOptions(ModelOptions):
    """What is compared with the plain path is all that is faster."""

    precision: Precision = "bf16"
    fast: Fast = "on"


@grouped
def stream(
    *,
    on: PlainOptions,
    shape: ShapeOptions,
    chunks: Annotated[int, typer.Option(help="Chunks that count, after the window is full.")] = 30,
    floor: Annotated[bool, typer.Option(help="Measure the hot floor too.")] = True,
    sessions: Annotated[int, typer.Option(help="Streams on the device at once; each makes that many chunks.")] = 1,
    together: Annotated[bool, typer.Option("--together", help="Sessions share their model calls, chunk by chunk.")] = False,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Time one stream on this device, window full: every phase, frames a second, memory, and how near the floor it is.

    The floor is the same chunk's products, attention calls and convolutions back to back and nothing else. With --sessions,
    several streams: what they make in all, each one's share, and what a further one holds.
    [bold]Try[/]: millstream bench stream --model wan2.1-t2v-1.3b --weights random --size 480x832 --window 9 --fast on
    """
    from millstream.commands.bench_stream import StreamRequest, run_bench_stream
    from millstream.commands.ranks import ModelRequest

    with plain_errors():
        how: dict[str, Any] = dict(chunks=chunks, floor=floor, sessions=sessions, together=together)
        request = StreamRequest(**ModelRequest(**on.request()).resolved(), changes=shape.changes(), **how)
        run_bench_stream(request, as_json=as_json, out=out)


@grouped
def quality(
    *,
    on: FastOptions,
    shape: ShapeOptions,
    chunks: Annotated[int, typer.Option(help="Chunks that are compared, from the first.")] = 6,
    exact: Annotated[bool, typer.Option(help="Compare with float32 too.")] = True,
    prompts: Annotated[int, typer.Option(help="For Brook: prompts judged, plain and fast; 256 tell a point.")] = 0,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Say what a speed-up costs: errors of latents and PSNR of frames against the plain path in bfloat16 and float32."""
    from millstream.commands.bench_quality import QualityRequest, run_bench_quality
    from millstream.commands.ranks import ModelRequest

    with plain_errors():
        how: dict[str, Any] = dict(chunks=chunks, exact=exact, prompts=prompts)
        request = QualityRequest(**ModelRequest(**on.request()).resolved(), changes=shape.changes(), **how)
        run_bench_quality(request, as_json=as_json, out=out)


def overlap(
    stages: Annotated[str, typer.Option(help="Milliseconds of front and mesh for a chunk: FRONT,MESH.")] = "185,805",
    scale: Annotated[float, typer.Option(help="Of those times.")] = 0.1,
    chunks: Annotated[int, typer.Option(help="For each line of the table; the first 10 do not count.")] = 40,
    topology: TopologyName = "front+1",
    as_json: Json = False,
    out: Out = None,
    plot: Annotated[Path | None, typer.Option(help="Draw timelines to this file, PNG or SVG.", show_default=False)] = None,
) -> None:
    """Show how front and mesh overlap, over queue depths and anchors, with stages that sleep to a set length.

    [bold]Try[/]: millstream bench overlap --plot overlap.png
    """
    with plain_errors():
        from millstream.commands.bench_overlap import OverlapRequest, run_bench_overlap
        from millstream.core.topology import Topology

        times = parse_numbers(stages)
        if len(times) != 2:
            raise ConfigError(f"--stages takes two times, FRONT,MESH, got {stages!r}")
        request = OverlapRequest(
            stage0_ms=times[0], stage1_ms=times[1], scale=scale, chunks=chunks, topology=Topology.parse(topology)
        )
        run_bench_overlap(request, as_json=as_json, out=out, plot=plot)
