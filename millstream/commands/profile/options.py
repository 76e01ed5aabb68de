"""Options of `millstream profile` and its commands: one dataclass a command. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from millstream.commands.options import (
    Json,
    ModelOptions,
    Schedule,
    ShapeOptions,
    TopologyName,
    parse_numbers,
)
from millstream.core.engine_config import EngineConfig
from millstream.core.errors import ConfigError
from millstream.core.examples import DEFAULT_PROMPT
from millstream.core.topology import Topology

MAX_CHUNKS = 64
"""Under the profiler: a chunk of a large model is some twenty thousand events."""


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(ShapeOptions, ModelOptions):
    """Choose the stream to profile, for how long, and the folder for its traces."""

    prompt: Annotated[str, typer.Argument(help="What the stream shows.")] = DEFAULT_PROMPT
    out: Annotated[Path, typer.Option("--out", "-o", help="The trace: .json or .json.gz.")] = Path(
        "out/trace.json.gz"
    )
    chunks: Annotated[int, typer.Option(help="Under the profiler, 1 to 64.")] = 4
    schedule: Schedule = None
    clip: Annotated[
        Path | None,
        typer.Option(help="Write the video too, as part of what is profiled.", show_default=False),
    ] = None
    topology: TopologyName = "local"
    ranks: Annotated[
        str | None,
        typer.Option(
            help="Whose traces, with commas between: 0,1; all if nothing is said.", show_default=False
        ),
    ] = None
    spans: Annotated[
        bool, typer.Option("--spans", help="Only the spans that are always on; no profiler.")
    ] = False

    def engine(self) -> EngineConfig:
        return replace(super().engine(), topology=Topology.parse(self.topology))

    @property
    def chosen(self) -> tuple[int, ...]:
        """Ranks whose traces are written."""
        if self.ranks is None:
            return tuple(range(Topology.parse(self.topology).world_size))
        return tuple(int(rank) for rank in parse_numbers(self.ranks))

    def check(self) -> None:
        """Refuse what cannot be profiled, before anything is loaded."""
        if not 1 <= self.chunks <= MAX_CHUNKS:
            raise ConfigError(
                f"--chunks must be 1 to {MAX_CHUNKS}: a trace is large and few chunks tell, got {self.chunks}"
            )
        if not self.out.name.endswith((".json", ".json.gz")):
            raise ConfigError(f"--out must end in .json or .json.gz, got {self.out.name!r}")
        if self.out.is_dir():
            raise ConfigError(f"{self.out} is a folder; choose another --out")
        topology = Topology.parse(self.topology)
        if not self.chosen or set(self.chosen) - set(range(topology.world_size)):
            raise ConfigError(
                f"--ranks must be of 0 to {topology.world_size - 1} on {topology}, got {self.ranks}"
            )
        if self.spans and not topology.is_local:
            raise ConfigError("--spans are of one process; leave --topology out")


@dataclass(frozen=True, kw_only=True)
class ProfileReadOptions:
    """Choose the traces to read, and what to compare them with."""

    traces: Annotated[
        list[Path], typer.Argument(help="Chrome or Kineto traces, one a rank; .json or .json.gz.")
    ]
    gpu: Annotated[
        str | None,
        typer.Option(help="The device it ran on, if the trace does not say: H200, here.", show_default=False),
    ] = None
    plan: Annotated[
        Path | None,
        typer.Option(help="What plan --json wrote, to set beside what happened.", show_default=False),
    ] = None
    log: Annotated[
        Path | None, typer.Option(help="What TORCH_LOGS=graph_breaks,recompiles wrote.", show_default=False)
    ] = None
    stages: Annotated[
        int | None, typer.Option(help="Of a pipeline, to predict its bubble.", show_default=False)
    ] = None
    micro_batches: Annotated[int | None, typer.Option(help="In flight, likewise.", show_default=False)] = None
    html: Annotated[
        Path | None, typer.Option(help="Write a report with a timeline, one file.", show_default=False)
    ] = None
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class ProfileDiffOptions:
    """Choose the two traces to compare, and how much worse is too much."""

    before: Annotated[Path, typer.Argument(help="A trace.")]
    after: Annotated[Path, typer.Argument(help="Another, taken alike.")]
    gate: Annotated[str, typer.Option(help="How much slower, or larger, is too much.")] = "5%"
    as_json: Json = False
