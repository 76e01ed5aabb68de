"""Options that several commands have, in groups: a command names a group, and has its options.

    @app.command()
    @grouped
    def stream(*, on: ModelOptions, shape: ShapeOptions, chunks: ... = 30) -> None: ...

A group is a frozen dataclass of annotated fields, and says what it means to the request that a command makes. Loads no torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from millstream.cli.parts import (
    Device,
    ExchangeGroups,
    Limits,
    Lora,
    TopologyName,
    VAEDevices,
    Weights,
    parse_devices,
    parse_lora,
    parse_numbers,
)
from millstream.core.config import parse_size
from millstream.core.engine_config import EngineConfig, EngineOptions
from millstream.core.mesh_limits import MeshLimits
from millstream.core.topology import Topology

Model = Annotated[str, typer.Option("--model", "-m", help="A registered model; see [bold]millstream doctor[/].")]
Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        "--dtype",
        help="auto, bf16, fp8, int8 or fp32; fp8 is of the products in fast blocks on a GPU, int8 of Brook's on a CPU.",
    ),
]
Fast = Annotated[
    str,
    typer.Option(
        help="auto: what costs no quality, on a GPU, and what makes Brook live, on a CPU. off, on, or names: blocks, "
        "round_keys, even_waves, decoder, "
        "own_convolution, graphs, paired_commits, low_attention, peer_memory, thin_decoder; on,-graphs is all but."
    ),
]
OffloadText = Annotated[bool, typer.Option("--offload-text", help="Keep the text encoder in host memory between prompts.")]
MAX_THREADS = 1024
"""OpenMP ends the process where it cannot have as many as it is told."""
Threads = Annotated[int | None, typer.Option(help="CPU threads.", min=1, max=MAX_THREADS, show_default=False)]
Size = Annotated[str | None, typer.Option(help="HEIGHTxWIDTH, multiples of 16.", show_default=False)]
Window = Annotated[int | None, typer.Option(help="Latent frames a chunk sees, its own included.", show_default=False)]
Steps = Annotated[
    str | None, typer.Option(help="Noise levels, high to low, a call for each: 1000,750,500,250.", show_default=False)
]


class Compiler(str, Enum):
    off = "off"
    inductor = "inductor"
    aot_eager = "aot_eager"
    eager = "eager"


Compile = Annotated[
    Compiler, typer.Option("--compile", help="What compiles the blocks, on every rank alike; the last two only trace them.")
]


class Positions(str, Enum):
    absolute = "absolute"
    windowed = "windowed"


class Anchor(str, Enum):
    off = "off"
    latent = "latent"
    decoded = "decoded"


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model, and how it runs on one device."""

    model: Model = "brook"
    weights: Weights = None
    device: Device = "auto"
    precision: Precision = "auto"
    fast: Fast = "auto"
    offload_text: OffloadText = False
    threads: Threads = None

    def engine(self) -> EngineConfig:
        weights = tuple(self.weights or ())
        return EngineConfig(model=self.model, weights=weights, device=self.device, offload_text=self.offload_text)

    def options(self) -> EngineOptions:
        return EngineOptions(engine=self.engine(), precision=self.precision, fast=self.fast, threads=self.threads)


@dataclass(frozen=True, kw_only=True)
class PlacedOptions(ModelOptions):
    """The same on one device or several, with styles merged in."""

    lora: Lora = None
    topology: TopologyName = "local"
    mesh_limits: Limits = ""
    compile: Compile = Compiler.off
    exchange_groups: ExchangeGroups = 1
    vae_devices: VAEDevices = None
    preview_decoder: Annotated[
        str, typer.Option(help="A small decoder that shows the pictures instead: taew2_1.pth.", show_default=False)
    ] = ""

    def engine(self) -> EngineConfig:
        return replace(
            ModelOptions.engine(self),
            loras=tuple(parse_lora(text) for text in self.lora or ()),
            topology=Topology.parse(self.topology),
            limits=MeshLimits.parse(self.mesh_limits),
            compile_backend="" if self.compile is Compiler.off else self.compile.value,
            head_groups=self.exchange_groups,
            vae_devices=tuple(parse_devices(self.vae_devices)),
            preview_decoder=self.preview_decoder,
        )


Schedule = Annotated[str | None, typer.Option(help="self-forcing, krea, streamdiffusion-v2 or longlive.", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """How large a stream's pictures, window and schedule are."""

    size: Size = None
    window: Window = None
    steps: Steps = None

    def changes(self) -> dict[str, Any]:
        """Fields of a StreamConfig, of those that were given."""
        height, width = parse_size(self.size) if self.size is not None else (None, None)
        steps = parse_numbers(self.steps) if self.steps is not None else None
        return _given(height=height, width=width, window=self.window, steps=steps)


@dataclass(frozen=True, kw_only=True)
class PastOptions(ShapeOptions):
    """The same, and what a stream keeps of its past."""

    sink: Annotated[int | None, typer.Option(help="First frames that never leave the window.", show_default=False)] = None
    positions: Annotated[Positions | None, typer.Option(help="windowed for streams without end.", show_default=False)] = None
    anchor: Annotated[Anchor | None, typer.Option(help="Rebuild the window before each chunk.", show_default=False)] = None
    context_noise: Annotated[float | None, typer.Option(help="Noise level the window is kept at.", show_default=False)] = None
    kv_bias: Annotated[float | None, typer.Option(help="Weight of the past in attention, 0 to 1.", show_default=False)] = None

    def changes(self) -> dict[str, Any]:
        return super().changes() | _given(
            sink=self.sink,
            positions=self.positions and self.positions.value,
            anchor=self.anchor and self.anchor.value,
            context_noise=self.context_noise,
            kv_bias=self.kv_bias,
        )


@dataclass(frozen=True, kw_only=True)
class StreamOptions(PastOptions):
    """All that a stream can be asked to be at its start."""

    fps: Annotated[float | None, typer.Option(help="Frames a second of the file.", show_default=False)] = None
    seed: Annotated[int, typer.Option(help="The same seed and controls give the same video.")] = 0
    noise_scale: Annotated[float | None, typer.Option(help="With --input: share of noise, 0 to 1.", show_default=False)] = None
    motion_gain: Annotated[
        float | None, typer.Option(help="With --input: noise motion adds; 0 is off.", show_default=False)
    ] = None

    def changes(self) -> dict[str, Any]:
        return super().changes() | _given(
            fps=self.fps,
            seed=self.seed,
            noise_scale=self.noise_scale,
            motion_gain=self.motion_gain,
        )


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each group among its parameters spelled out: as typer sees it, the group's fields stand there."""
    groups: dict[str, Any] = {}
    spelled: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            spelled += _fields(parameter.annotation)
        else:
            spelled.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**given: Any) -> None:
        taken = {name: {field.name: given.pop(field.name) for field in fields(group)} for name, group in groups.items()}
        command(**given, **{name: groups[name](**values) for name, values in taken.items()})

    run.__signature__ = inspect.Signature(spelled)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in spelled}
    return run


def _fields(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
