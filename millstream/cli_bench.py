"""`millstream bench stream`, `bench quality` and `bench overlap`: how their options are spelled. Loads no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli_parts import Device, TopologyName, Weights, parse_numbers, parse_size, plain_errors
from millstream.core.errors import ConfigError
from millstream.core.speed import parse_speed

Model = Annotated[str, typer.Option("--model", "-m", help="A registered model; see [bold]millstream doctor[/].")]
Size = Annotated[str | None, typer.Option(help="HEIGHTxWIDTH, multiples of 16.", show_default=False)]
Window = Annotated[int | None, typer.Option(help="Latent frames a chunk sees, its own included.", show_default=False)]
Steps = Annotated[str | None, typer.Option(help="Noise levels, high to low: 1000,750,500,250.", show_default=False)]
Precision = Annotated[str, typer.Option(help="bf16, fp8 or fp32; fp8 is of the products in fast blocks.")]
Fast = Annotated[
    str,
    typer.Option(
        help="off, on, or names: blocks, round_keys, decoder, own_convolution, graphs, paired_commits; on,-graphs is all but."
    ),
]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", min=1, show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write the figures as JSON too.", show_default=False)]


def stream(
    model: Model = "brook",
    weights: Weights = None,
    size: Size = None,
    window: Window = None,
    steps: Steps = None,
    precision: Precision = "bf16",
    fast: Fast = "off",
    chunks: Annotated[int, typer.Option(help="Chunks that count, after the window is full.")] = 30,
    floor: Annotated[bool, typer.Option(help="Measure the hot floor too.")] = True,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Time one stream on this device, window full: every phase, frames a second, memory, and how near the floor it is.

    The floor is the same chunk's products, attention calls and convolutions back to back and nothing else.
    [bold]Try[/]: millstream bench stream --model wan2.1-t2v-1.3b --weights random --size 480x832 --window 9 --fast on
    """
    from millstream.commands.bench_stream import StreamRequest, run_bench_stream

    with plain_errors():
        request = StreamRequest(
            model=model,
            weights=weights or [],
            changes=_changes(size, window, steps),
            speed=parse_speed(fast, precision),
            chunks=chunks,
            floor=floor,
            device=device,
            dtype="float32" if precision == "fp32" else "bfloat16",
            threads=threads,
        )
        run_bench_stream(request, as_json=as_json, out=out)


def quality(
    model: Model = "brook",
    weights: Weights = None,
    size: Size = None,
    window: Window = None,
    steps: Steps = None,
    precision: Precision = "bf16",
    fast: Fast = "on",
    chunks: Annotated[int, typer.Option(help="Chunks that are compared, from the first.")] = 6,
    exact: Annotated[bool, typer.Option(help="Compare with float32 too.")] = True,
    prompts: Annotated[int, typer.Option(help="For Brook: prompts whose adherence is judged, plain and fast.")] = 0,
    device: Device = "auto",
    threads: Threads = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Say what a speed-up costs: errors of latents and PSNR of frames against the plain path in bfloat16 and float32."""
    from millstream.commands.bench_quality import QualityRequest, run_bench_quality

    with plain_errors():
        request = QualityRequest(
            model=model,
            weights=weights or [],
            changes=_changes(size, window, steps),
            speed=parse_speed(fast, precision),
            chunks=chunks,
            exact=exact,
            prompts=prompts,
            device=device,
            threads=threads,
        )
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


def _changes(size: str | None, window: int | None, steps: str | None) -> dict[str, Any]:
    """Fields of StreamConfig that were given."""
    height, width = parse_size(size) if size is not None else (None, None)
    levels = parse_numbers(steps) if steps is not None else None
    given = dict(height=height, width=width, window=window, steps=levels)
    return {name: value for name, value in given.items() if value is not None}
