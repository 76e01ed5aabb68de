"""`millstream profile`: how its options are spelled. Loads no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.options import ModelOptions, ShapeOptions, grouped
from millstream.cli.parts import TopologyName, parse_numbers, plain_errors
from millstream.core.examples import DEFAULT_PROMPT

profile = typer.Typer(
    name="profile",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Find out what a run is bound by, and the most that could be gained.",
)


@profile.command()
@grouped
def run(
    *,
    prompt: Annotated[str, typer.Argument(help="What the stream shows.")] = DEFAULT_PROMPT,
    on: ModelOptions,
    shape: ShapeOptions,
    out: Annotated[Path, typer.Option("--out", "-o", help="The trace: .json or .json.gz.")] = Path("out/trace.json.gz"),
    chunks: Annotated[int, typer.Option(help="Under the profiler, 1 to 64.")] = 4,
    schedule: Annotated[
        str | None, typer.Option(help="self-forcing, krea, streamdiffusion-v2 or longlive.", show_default=False)
    ] = None,
    clip: Annotated[
        Path | None, typer.Option(help="Write the video too, as part of what is profiled.", show_default=False)
    ] = None,
    topology: TopologyName = "local",
    ranks: Annotated[
        str | None, typer.Option(help="Whose traces, with commas between: 0,1; all if nothing is said.", show_default=False)
    ] = None,
    spans: Annotated[bool, typer.Option("--spans", help="Only the spans that are always on; no profiler.")] = False,
) -> None:
    """Stream chunks until the window is full, then some under a profiler, and write the trace, one a rank.

    [bold]Then[/]: millstream profile read out/trace.json.gz --html report.html
    """
    with plain_errors():
        from millstream.commands.engine_from_options import resolve
        from millstream.commands.profile.run import ProfileRequest, run_profile
        from millstream.core.topology import Topology

        options = on.options()
        request = ProfileRequest(
            engine=resolve(replace(options, engine=replace(options.engine, topology=Topology.parse(topology)))),
            prompt=prompt,
            out=out,
            schedule=schedule,
            changes=shape.changes(),
            chunks=chunks,
            ranks=None if ranks is None else tuple(int(rank) for rank in parse_numbers(ranks)),
            clip=clip,
            spans_only=spans,
        )
        for path in run_profile(request):
            typer.echo(path)


@profile.command()
def read(
    traces: Annotated[list[Path], typer.Argument(help="Chrome or Kineto traces, one a rank; .json or .json.gz.")],
    gpu: Annotated[
        str | None, typer.Option(help="The device it ran on, if the trace does not say: H200, here.", show_default=False)
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="What plan --json wrote, to set beside what happened.", show_default=False)
    ] = None,
    log: Annotated[Path | None, typer.Option(help="What TORCH_LOGS=graph_breaks,recompiles wrote.", show_default=False)] = None,
    stages: Annotated[int | None, typer.Option(help="Of a pipeline, to predict its bubble.", show_default=False)] = None,
    micro_batches: Annotated[int | None, typer.Option(help="In flight, likewise.", show_default=False)] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report with a timeline, one file.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what a run is bound by, with evidence, how sure that is, and the most it could gain.

    Reads traces of ours or of anybody's. One that cannot be trusted is called so, and gets no advice.
    """
    with plain_errors():
        from millstream.commands.profile.read import ReadRequest, run_profile_read

        request = ReadRequest(traces=traces, gpu=gpu, plan=plan, log=log, stages=stages, micro_batches=micro_batches)
        run_profile_read(request, html=html, as_json=as_json)


@profile.command()
def diff(
    before: Annotated[Path, typer.Argument(help="A trace.")],
    after: Annotated[Path, typer.Argument(help="Another, taken alike.")],
    gate: Annotated[str, typer.Option(help="How much slower, or larger, is too much.")] = "5%",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Set two runs side by side. Exit code 1 if a chunk, or the peak of memory, grew by more than the gate."""
    with plain_errors():
        from millstream.commands.profile.read import parse_share, run_profile_diff

        kept = run_profile_diff(before, after, gate=parse_share(gate), as_json=as_json)
    if not kept:
        raise typer.Exit(1)
