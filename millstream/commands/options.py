"""Options of a command from its dataclass, and the options that several commands share.

    @dataclass(frozen=True, kw_only=True)
    class StreamBenchOptions(ModelOptions, ShapeOptions):
        chunks: Annotated[int, typer.Option(help="Chunks that count.")] = 30

    @bench.command()
    @with_options
    def stream(options: StreamBenchOptions) -> None: ...

The fields are the command line's options, their defaults and their help; `--config` takes its keys from them
and `option_tables.py` the tables in docs/. Commands share options by inheritance. Loads no torch.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import wraps
from typing import Annotated, Any, ClassVar, get_type_hints

import typer

from millstream.commands.usage import plain_errors
from millstream.core.config import MAX_FPS, MIN_FPS, StreamConfig, parse_size
from millstream.core.engine_config import EngineConfig
from millstream.core.errors import ConfigError
from millstream.core.mesh_limits import MeshLimits
from millstream.core.presets import SCHEDULES
from millstream.core.topology import Topology

Weights = Annotated[
    list[str] | None,
    typer.Option(
        "--weights",
        "-w",
        help="Folder or file, in any layout we know; repeat for several. Or [bold]random[/] (-whole: its "
        "text encoder too).",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")]
TopologyName = Annotated[
    str,
    typer.Option(
        "--topology", help="Who works where: local, front+1, front+tp2, front+sp2, front+pp2, front+pp2xtp2."
    ),
]
VAEDevices = Annotated[
    str | None,
    typer.Option(
        "--vae-devices",
        help="The VAE's own device, cuda:1, or several that share each picture: cuda:0,cuda:1.",
        show_default=False,
    ),
]
ExchangeGroups = Annotated[
    int,
    typer.Option(
        "--exchange-groups", help="With spN: groups that heads travel in, each while the next is projected."
    ),
]
Limits = Annotated[
    str,
    typer.Option(
        "--mesh-limits",
        help="Seconds that ranks are waited for, where weights or chunks take long: start=900,hang=300.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no table.")]
Lora = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        help="LoRA file to merge, with a scale after a colon: style.safetensors:0.8",
        show_default=False,
    ),
]
Model = Annotated[
    str, typer.Option("--model", "-m", help="A registered model; see [bold]millstream doctor[/].")
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        "--dtype",
        help="auto, bf16, fp8, int8 or fp32; fp8 is of the matmuls in fast blocks on a GPU, int8 of Brook's "
        "on a CPU.",
    ),
]
Fast = Annotated[
    str,
    typer.Option(
        help="auto: what costs no quality, on a GPU, and what makes Brook live, on a CPU. off, on, or names: "
        "blocks, "
        "round_keys, even_waves, decoder, "
        "own_convolution, graphs, paired_commits, low_attention, peer_memory, thin_decoder; on,-graphs is "
        "all but."
    ),
]
OffloadText = Annotated[
    bool, typer.Option("--offload-text", help="Keep the text encoder in host memory between prompts.")
]
MAX_THREADS = 1024
"""OpenMP ends the process where it cannot have as many as it is told."""
Threads = Annotated[int | None, typer.Option(help="CPU threads.", min=1, max=MAX_THREADS, show_default=False)]
Size = Annotated[
    str | None, typer.Option(help="HEIGHTxWIDTH, multiples of 16, for Wan 2.2 of 32.", show_default=False)
]
Window = Annotated[
    int | None, typer.Option(help="Latent frames a chunk sees, its own included.", show_default=False)
]
Steps = Annotated[
    str | None,
    typer.Option(help="Noise levels, high to low, a call for each: 1000,750,500,250.", show_default=False),
]

FirstSteps = Annotated[
    str | None,
    typer.Option(
        help="Noise levels of the first chunk, and of the first after a cut, where they are others.",
        show_default=False,
    ),
]


class Compiler(str, Enum):
    off = "off"
    inductor = "inductor"
    aot_eager = "aot_eager"
    eager = "eager"

    @property
    def backend(self) -> str:
        """The name that torch knows; empty for none."""
        return "" if self is Compiler.off else self.value


Compile = Annotated[
    Compiler,
    typer.Option(
        "--compile", help="What compiles the blocks, on every rank alike; the last two only trace them."
    ),
]


class Positions(str, Enum):
    absolute = "absolute"
    windowed = "windowed"


class Sampler(str, Enum):
    renoise = "renoise"
    unipc = "unipc"


class Anchor(str, Enum):
    off = "off"
    latent = "latent"
    decoded = "decoded"


Schedule = Annotated[
    str | None,
    typer.Option(
        help=f"Steps, chunk and window as a model was trained for them: {', '.join(SCHEDULES)}.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]
STREAM_FIELDS = frozenset(field.name for field in fields(StreamConfig))


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Choose the model, and how it runs on one device."""

    model: Model = "brook"
    weights: Weights = None
    device: Device = "auto"
    precision: Precision = "auto"
    fast: Fast = "auto"
    offload_text: OffloadText = False
    threads: Threads = None

    def engine(self) -> EngineConfig:
        """The engine as asked for; `engine_from_options.resolve` finds its weights and chooses dtype and
        speed-ups."""
        return EngineConfig(
            model=self.model,
            weights=tuple(self.weights or ()),
            device=self.device,
            offload_text=self.offload_text,
        )


@dataclass(frozen=True, kw_only=True)
class PlacedOptions(ModelOptions):
    """The model, and where it runs: one device or several, with styles merged in."""

    lora: Lora = None
    topology: TopologyName = "local"
    mesh_limits: Limits = ""
    compile: Compile = Compiler.off
    exchange_groups: ExchangeGroups = 1
    experimental: Annotated[
        bool,
        typer.Option(
            "--experimental", help="Allow what no measurement supports yet: stream batch, exchange groups."
        ),
    ] = False
    vae_devices: VAEDevices = None
    preview_decoder: Annotated[
        str,
        typer.Option(
            help="A small decoder that shows the pictures instead: taew2_1.pth.", show_default=False
        ),
    ] = ""

    def engine(self) -> EngineConfig:
        return replace(
            super().engine(),
            loras=tuple(parse_lora(text) for text in self.lora or ()),
            topology=Topology.parse(self.topology),
            limits=MeshLimits.parse(self.mesh_limits),
            compile_backend=self.compile.backend,
            exchange_groups=self.exchange_groups,
            experimental=self.experimental,
            vae_devices=parse_devices(self.vae_devices),
            preview_decoder=self.preview_decoder,
        )


@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """Set the size of a stream's frames, its window and its schedule."""

    not_of_stream: ClassVar[frozenset[str]] = frozenset()
    """Options that are named as a StreamConfig's field and mean something else."""

    size: Size = None
    window: Window = None
    steps: Steps = None
    first_steps: FirstSteps = None

    def changes(self) -> dict[str, Any]:
        """Fields of a StreamConfig, of those that were given."""
        names = STREAM_FIELDS - self.not_of_stream
        given = {name: value for name, value in vars(self).items() if name in names and value is not None}
        if self.size is not None:
            given["height"], given["width"] = parse_size(self.size)
        if self.steps is not None:
            given["steps"] = parse_numbers(self.steps)
        if self.first_steps is not None:
            given["first_steps"] = parse_numbers(self.first_steps)
        return {name: value.value if isinstance(value, Enum) else value for name, value in given.items()}


@dataclass(frozen=True, kw_only=True)
class PastOptions(ShapeOptions):
    """Shape of a stream, and what it keeps of its past."""

    sink: Annotated[
        int | None, typer.Option(help="First frames that never leave the window.", show_default=False)
    ] = None
    positions: Annotated[
        Positions | None, typer.Option(help="windowed for streams without end.", show_default=False)
    ] = None
    anchor: Annotated[
        Anchor | None, typer.Option(help="Rebuild the window before each chunk.", show_default=False)
    ] = None
    context_noise: Annotated[
        float | None, typer.Option(help="Noise level the window is kept at.", show_default=False)
    ] = None
    kv_bias: Annotated[
        float | None, typer.Option(help="Weight of the past in attention, 0 to 1.", show_default=False)
    ] = None
    sampler: Annotated[
        Sampler | None,
        typer.Option(
            help="How a chunk gets from level to level: fresh noise, or a multistep solver's steps.",
            show_default=False,
        ),
    ] = None
    schedule: Schedule = None


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Show Typer the fields of each dataclass among the command's parameters, and print what is wrong as one
    line."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    options: dict[str, type[Any]] = {
        each.name: each.annotation
        for each in parameters
        if isinstance(each.annotation, type) and is_dataclass(each.annotation)
    }
    spelled = [
        _parameter(each.name, each.annotation, each.default)
        for each in parameters
        if each.name not in options
    ]
    for kind in options.values():
        hints = get_type_hints(kind, include_extras=True)
        spelled += [_parameter(field.name, hints[field.name], field.default) for field in fields(kind)]

    @wraps(command)
    def run(**given: Any) -> None:
        with plain_errors():
            built = {
                name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
                for name, kind in options.items()
            }
            command(**given, **built)

    run.__signature__ = inspect.Signature(spelled)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in spelled}
    return run


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def parse_numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(step) for step in text.split(","))
    except ValueError:
        raise ConfigError(
            f"expected numbers with commas between them, for example 1000,750,500,250, got {text!r}"
        ) from None


def parse_lora(text: str) -> tuple[str, float]:
    path, colon, scale = text.rpartition(":")
    try:
        return (path, float(scale)) if colon else (text, 1.0)
    except ValueError:
        return text, 1.0


def parse_devices(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(name.strip() for name in text.split(","))


def parse_fps(text: str) -> float:
    """A frame rate as it is typed."""
    try:
        fps = float(text)
    except ValueError:
        fps = math.nan
    if not MIN_FPS <= fps <= MAX_FPS:
        raise ConfigError(f"--fps must be auto or between {MIN_FPS:g} and {MAX_FPS:g}, got {text}")
    return fps
