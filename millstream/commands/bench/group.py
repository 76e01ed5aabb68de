"""`millstream bench`: the options of its commands, and the commands. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import typer

from millstream.commands.options import (
    Compile,
    Compiler,
    Fast,
    Json,
    ModelOptions,
    Precision,
    ShapeOptions,
    TopologyName,
    Weights,
    parse_fps,
    parse_numbers,
    with_options,
)
from millstream.core.engine_config import EngineConfig
from millstream.core.errors import ConfigError
from millstream.core.topology import Topology

bench = typer.Typer(
    name="bench", no_args_is_help=True, rich_markup_mode="rich", help="Measure streams, and servers."
)

Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Write the figures as JSON too.", show_default=False)
]


@dataclass(frozen=True, kw_only=True)
class StreamBenchOptions(ShapeOptions, ModelOptions):
    """Choose the stream that is timed, and for how long."""

    chunks: Annotated[int, typer.Option(help="Chunks that count, after the window is full.")] = 30
    floor: Annotated[bool, typer.Option(help="Measure the hot floor too.")] = True
    sessions: Annotated[
        int, typer.Option(help="Streams on the device at once; each makes that many chunks.")
    ] = 1
    together: Annotated[
        bool, typer.Option("--together", help="Sessions share their model calls, chunk by chunk.")
    ] = False
    as_json: Json = False
    out: Out = None


@bench.command()
@with_options
def stream(options: StreamBenchOptions) -> None:
    """Time one stream on this device, window full: every phase, frames a second, memory, and how near the
    floor it is.

    The floor is the same chunk's matmuls, attention calls and convolutions back to back and nothing else.
    With --sessions, several streams: what they make in all, each one's share, and what a further one holds.
    [bold]Try[/]: millstream bench stream --model wan2.1-t2v-1.3b --weights random --size 480x832 --window 9
    --fast on
    """
    from millstream.commands.bench.stream import StreamRequest, run_bench_stream
    from millstream.commands.engine_from_options import resolve

    request = StreamRequest(
        engine=resolve(options),
        changes=options.changes(),
        chunks=options.chunks,
        floor=options.floor,
        sessions=options.sessions,
        together=options.together,
    )
    run_bench_stream(request, as_json=options.as_json, out=options.out)


@dataclass(frozen=True, kw_only=True)
class QualityOptions(ShapeOptions, ModelOptions):
    """Choose the speed-ups that are compared with the plain path: all of them unless some are named."""

    precision: Precision = "bf16"
    fast: Fast = "on"
    chunks: Annotated[int, typer.Option(help="Chunks that are compared, from the first.")] = 6
    exact: Annotated[bool, typer.Option(help="Compare with float32 too.")] = True
    prompts: Annotated[
        int, typer.Option(help="For Brook: prompts judged, plain and fast; 256 tell a point.")
    ] = 0
    as_json: Json = False
    out: Out = None


@bench.command()
@with_options
def quality(options: QualityOptions) -> None:
    """Say what a speed-up costs: errors of latents and PSNR of frames against the plain path in bfloat16 and
    float32."""
    from millstream.commands.bench.quality import QualityRequest, run_bench_quality
    from millstream.commands.engine_from_options import resolve

    request = QualityRequest(
        engine=resolve(options),
        changes=options.changes(),
        chunks=options.chunks,
        exact=options.exact,
        prompts=options.prompts,
    )
    run_bench_quality(request, as_json=options.as_json, out=options.out)


@dataclass(frozen=True, kw_only=True)
class OverlapOptions(ShapeOptions, ModelOptions):
    """Choose the stages that are overlapped: some that sleep, or a model's."""

    stages: Annotated[
        str,
        typer.Option(
            help="Milliseconds of front and mesh for a chunk, FRONT,MESH; or real: those of --model, here."
        ),
    ] = "185,805"
    scale: Annotated[float, typer.Option(help="Of those times.")] = 0.1
    chunks: Annotated[int, typer.Option(help="For each line of the table; the first 10 do not count.")] = 40
    topology: TopologyName = "front+1"
    as_json: Json = False
    out: Out = None
    plot: Annotated[
        Path | None, typer.Option(help="Draw timelines to this file, PNG or SVG.", show_default=False)
    ] = None

    def engine(self) -> EngineConfig:
        return replace(super().engine(), topology=Topology.parse(self.topology))

    def sleeping_ms(self) -> tuple[float, ...]:
        """Times of front and mesh where both sleep; a model's options are refused then."""
        of_model = [field for kind in (ModelOptions, ShapeOptions) for field in fields(kind)]
        if any(getattr(self, field.name) != field.default for field in of_model):
            raise ConfigError(
                "stages that sleep have no model; give --stages real with --model and its options"
            )
        times = parse_numbers(self.stages)
        if len(times) != 2:
            raise ConfigError(f"--stages takes two times, FRONT,MESH, or real; got {self.stages!r}")
        return times


@bench.command()
@with_options
def overlap(options: OverlapOptions) -> None:
    """Show how front and mesh overlap, over queue depths and anchors, with stages that sleep to a set length
    or a model's own.

    [bold]Try[/]: millstream bench overlap --plot overlap.png
    """
    from millstream.commands.bench.overlap import OverlapRequest, run_bench_overlap
    from millstream.commands.engine_from_options import resolve

    topology = Topology.parse(options.topology)
    if options.stages == "real":
        request = OverlapRequest(
            engine=resolve(options), changes=options.changes(), chunks=options.chunks, topology=topology
        )
    else:
        front_ms, mesh_ms = options.sleeping_ms()
        request = OverlapRequest(
            stage0_ms=front_ms,
            stage1_ms=mesh_ms,
            scale=options.scale,
            chunks=options.chunks,
            topology=topology,
        )
    run_bench_overlap(request, as_json=options.as_json, out=options.out, plot=options.plot)


@dataclass(frozen=True, kw_only=True)
class MeshOptions(ShapeOptions, ModelOptions):
    """Choose the topologies that are compared with one device."""

    topology: Annotated[
        list[str] | None,
        typer.Option(
            help="front+tp2, or another; repeat for several. Without: all that the devices allow.",
            show_default=False,
        ),
    ] = None
    compile: Compile = Compiler.off
    tiles: Annotated[
        bool, typer.Option("--tiles", help="Each also with its pictures in tiles, one on each rank's device.")
    ] = False
    chunks: Annotated[int, typer.Option(help="Chunks that count, of each topology.")] = 20
    as_json: Json = False
    out: Out = None

    def engine(self) -> EngineConfig:
        return replace(super().engine(), compile_backend=self.compile.backend)


@bench.command()
@with_options
def mesh(options: MeshOptions) -> None:
    """Hold one stream over several devices against one: a chunk's time, frames a second, what ranks say to
    each other.

    For several GPUs; without one, ranks are processes of this CPU. With --compile, each is measured as it is
    and compiled. [bold]Try[/]: millstream bench mesh --model wan2.1-t2v-1.3b --weights random --size 480x832
    --window 9 --out mesh.json
    """
    from millstream.commands.bench.mesh import MeshRequest, run_bench_mesh
    from millstream.commands.engine_from_options import resolve

    request = MeshRequest(
        engine=resolve(options),
        topologies=tuple(Topology.parse(name) for name in options.topology or ()),
        changes=options.changes(),
        tiles=options.tiles,
        chunks=options.chunks,
    )
    run_bench_mesh(request, as_json=options.as_json, out=options.out)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Set how many scripted clients come, to which server, and what they do."""

    sessions: Annotated[int, typer.Option(help="People at once, each with a session: 1 to 64.")] = 4
    seconds: Annotated[float, typer.Option(help="How long they stay, at most 3600.")] = 60.0
    url: Annotated[
        str | None,
        typer.Option(
            help="A server on this machine, http://127.0.0.1:8000; without it one is started.",
            show_default=False,
        ),
    ] = None
    fps: Annotated[
        str,
        typer.Option(help="Frames a second that each asks for, and no less; auto: what the server chooses."),
    ] = "auto"
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="For the server that is started.", show_default=False)
    ] = None
    weights: Weights = None
    script: Annotated[str, typer.Option(help="What kind of people: calm, busy or rude.")] = "calm"
    connects: Annotated[int, typer.Option(help="Short visits afterwards, at most 1000.")] = 0
    seed: Annotated[int, typer.Option(help="The same seed acts the same.")] = 0
    as_json: Json = False
    out: Out = None
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit 1 if a limit is missed, continuity 0.99 among them.")
    ] = False


@bench.command()
@with_options
def load(options: LoadOptions) -> None:
    """Put scripted people on a server over real sockets: they switch prompts, cut, pause, leave and come
    back.

    Tells for each of them how continuous the picture was, how soon the first frame came and how soon a
    control showed; and what the server's memory did. Only for servers on this machine.
    """
    if options.url is not None and (options.model is not None or options.weights):
        raise ConfigError(
            "--model and --weights are for a server that is started here; leave them out with --url"
        )
    from millstream.commands.bench.load import run_bench_load
    from millstream.load.run import LoadRequest

    started_with = (
        *(("--model", options.model) if options.model else ()),
        *(word for path in options.weights or () for word in ("--weights", path)),
    )
    request = LoadRequest(
        sessions=options.sessions,
        seconds=options.seconds,
        fps=None if options.fps == "auto" else parse_fps(options.fps),
        script=options.script,
        connects=options.connects,
        seed=options.seed,
        url=options.url,
        server_options=started_with,
    )
    if run_bench_load(request, as_json=options.as_json, out=options.out, gate=options.gate):
        raise typer.Exit(1)
