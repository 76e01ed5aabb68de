"""Options of `millstream plan` and its commands: one dataclass a command, which makes the planner's own
question of them.

Loads no torch, and the planner only once a question is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import typer

from millstream.commands.options import Json, Schedule, ShapeOptions
from millstream.core.config import TEMPORAL_STRIDE, ModelSpec, StreamConfig
from millstream.core.errors import ConfigError, DeviceError
from millstream.core.presets import apply_schedule
from millstream.core.schedule import even_steps
from millstream.core.topology import Topology

if TYPE_CHECKING:
    from millstream.planner.hardware import Fleet
    from millstream.planner.judge import PlanAsk
    from millstream.planner.workload import Workload

DEFAULT_GPUS = "1xH200"
MOST_STEPS = 100

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="A registered model, a checkpoint's folder, or layers=30,width=1536,heads=12,ffn=8960.",
    ),
]
Gpus = Annotated[
    str,
    typer.Option(
        help="How many of what: 4xH200, RTX4090, laptop-cpu; here, once calibrated; H100,4xRTX4090@0.40 to "
        "choose from; "
        "anyxH100 for as many as it takes, any for any card."
    ),
]
Sessions = Annotated[int, typer.Option(help="Streams at the same time.")]
Context = Annotated[int, typer.Option(help="For a language model: tokens of a text.")]


@dataclass(frozen=True, kw_only=True)
class PlannedOptions(ShapeOptions):
    """Describe the model, its stream and rate, the program that runs it, and the devices."""

    model: Model = "wan2.1-t2v-1.3b"
    gpus: Gpus = DEFAULT_GPUS
    fps: Annotated[
        float | None, typer.Option(help="Frames a second promised to each session.", show_default=False)
    ] = None
    software: Annotated[
        str | None,
        typer.Option(
            help="Whose kernels: fast, eager, compiled, reference (Self-Forcing's), wan, diffusers, xdit, "
            "fastvideo, sglang, "
            "lightx2v, krea, flashdreams or processor; fast on GPUs.",
            show_default=False,
        ),
    ] = None
    topology: Annotated[
        str | None,
        typer.Option(
            help="Only this one, not the best: local, front+1, tp2, front+pp2xtp2.", show_default=False
        ),
    ] = None

    @property
    def only(self) -> Topology | None:
        """The one topology that is planned; None for all."""
        return Topology.parse(self.topology) if self.topology else None

    def changes(self) -> dict[str, Any]:
        """Fields of a StreamConfig. A single number of steps is how many, spread evenly; 1000 is one, from
        pure noise."""
        given = super().changes()
        for name in ("steps", "first_steps"):
            if name in given:
                given[name] = _counted(given[name], f"--{name.replace('_', '-')}")
        return given

    def fleets(self) -> tuple[Fleet, ...]:
        """Devices to choose from; usually of one kind."""
        from millstream.commands.paths import profile_path
        from millstream.planner.hardware import parse_fleets
        from millstream.planner.profile import read_profile

        return parse_fleets(self.gpus, here=read_profile(profile_path()))

    def ask(self) -> PlanAsk:
        """The planner's question, of the one kind of card that is named."""
        fleets = self.fleets()
        if len(fleets) > 1:
            raise ConfigError(f"this is of one kind of card; --gpus {self.gpus} are several")
        return self.ask_of(fleets[0])

    def ask_of(self, fleet: Fleet) -> PlanAsk:
        from millstream.planner.judge import PlanAsk

        return PlanAsk(work=self.workload(fleet), fleet=fleet)

    def workload(self, fleet: Fleet) -> Workload:
        """The stream and how it is computed; where no software is named, what `millstream serve` would run
        there."""
        from millstream.planner.checkpoints import resolve_model
        from millstream.planner.software import SOFTWARE, find_software
        from millstream.planner.workload import Workload

        device = fleet.device
        software = device.fitted or SOFTWARE["processor" if device.processor else "fast"]
        if self.software:
            software = find_software(self.software)
        spec = resolve_model(self.model)
        return Workload(spec=spec, stream=self.stream(spec), software=software)

    def stream(self, spec: ModelSpec) -> StreamConfig:
        return replace(spec.stream, **self.changes())


@dataclass(frozen=True, kw_only=True)
class PlanOptions(PlannedOptions):
    """For how many it streams, under which promise, at what price, and in which variants."""

    sessions: Sessions = 1
    first_frame: Annotated[
        float | None, typer.Option(help="Most seconds until the first frame.", show_default=False)
    ] = None
    schedule: Schedule = None
    precision: Annotated[str, typer.Option(help="Of matmuls: native (bf16) or fp8.")] = "native"
    batch: Annotated[int, typer.Option(help="Sessions that share their model calls.")] = 1
    video_in: Annotated[
        bool, typer.Option("--video-in", help="Video to video: pictures are encoded too.")
    ] = False
    price: Annotated[
        float | None,
        typer.Option(help="Dollars per device and hour, instead of an assumed price.", show_default=False),
    ] = None
    profile: Annotated[
        Path | None,
        typer.Option(help="Another calibration than this machine's.", show_default=False, dir_okay=False),
    ] = None
    gpu_file: Annotated[
        Path | None,
        typer.Option(
            help="A card of your own, in TOML: docs/planning.md has one.", show_default=False, dir_okay=False
        ),
    ] = None
    stream_batch: Annotated[
        bool, typer.Option("--stream-batch", help="All noise levels of a stream in one call.")
    ] = False
    commit: Annotated[bool, typer.Option(help="Run each finished chunk once more for its keys.")] = True
    guidance: Annotated[
        bool, typer.Option("--guidance", help="Run each step with the prompt and without it.")
    ] = False
    clip: Annotated[
        int | None,
        typer.Option(
            help="Frames of a clip made at once, as models that do not stream do: 81.", show_default=False
        ),
    ] = None
    vae: Annotated[str, typer.Option(help="full, or tiny: TAEHV's decoder.")] = "full"
    text: Annotated[
        str, typer.Option(help="Text encoder: on the device, visiting it for each prompt, or on the cpu.")
    ] = "device"
    weights: Annotated[
        str, typer.Option(help="As kept in memory: native, int8, or as GGUF q8_0, q6_k, q5_k, q4_k.")
    ] = "native"
    most: Annotated[
        str | None,
        typer.Option(
            "--max", help="The largest that holds: size, window, sessions or batch.", show_default=False
        ),
    ] = None
    html: Annotated[
        Path | None, typer.Option(help="Write a report with plots, one file.", show_default=False)
    ] = None
    as_json: Json = False

    def fleets(self) -> tuple[Fleet, ...]:
        """Devices to choose from. A card from a file is meant where nothing else is named."""
        from millstream.commands.paths import profile_path
        from millstream.planner.cards.own import read_card
        from millstream.planner.hardware import parse_fleets
        from millstream.planner.profile import read_profile

        if self.profile is not None and not self.profile.is_file():
            raise DeviceError(f"{self.profile} does not exist; write it with millstream plan calibrate --out")
        own = None if self.gpu_file is None else read_card(self.gpu_file)
        gpus = f"1x{own.name}" if own is not None and self.gpus == DEFAULT_GPUS else self.gpus
        return parse_fleets(
            gpus, price=self.price, here=read_profile(self.profile or profile_path()), own=own
        )

    def ask_of(self, fleet: Fleet) -> PlanAsk:
        return replace(
            super().ask_of(fleet),
            sessions=max(self.sessions, self.batch) if self.sessions > 0 else self.sessions,
            first_frame_ms=None if self.first_frame is None else 1e3 * self.first_frame,
        )

    def workload(self, fleet: Fleet) -> Workload:
        from millstream.planner.workload import Precision

        if self.precision not in ("native", "fp8"):
            raise ConfigError(f"--precision must be native or fp8, got {self.precision!r}")
        return replace(
            super().workload(fleet),
            precision=cast(Precision, self.precision),
            batch=self.batch,
            video_in=self.video_in,
            stream_batch=self.stream_batch,
            commit=self.commit,
            guidance=self.guidance,
            whole_clip=self.clip is not None,
            decoder=self.vae,
            text_place=self.text,
            weights=self.weights,
        )

    def stream(self, spec: ModelSpec) -> StreamConfig:
        stream = apply_schedule(spec.stream, self.schedule) if self.schedule else spec.stream
        if self.clip is None:
            return replace(stream, **self.changes())
        if not 1 <= self.clip <= 1024 or self.clip % TEMPORAL_STRIDE != 1:
            raise ConfigError(
                f"--clip must be 1 to 1024 frames, 4 times a number and one more, such as 81, got {self.clip}"
            )
        latents = 1 + self.clip // TEMPORAL_STRIDE
        whole = {"frames_per_chunk": latents, "window": latents, "sink": 0, "anchor": "off"}
        return replace(stream, **{**self.changes(), **whole})


@dataclass(frozen=True, kw_only=True)
class ScaleOptions(PlannedOptions):
    """Options of a plan on more and more devices."""

    html: Annotated[Path | None, typer.Option(help="Write the curves, one file.", show_default=False)] = None
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(PlannedOptions):
    """The plan, on enough devices for several replicas, and the people who come."""

    not_of_stream: ClassVar[frozenset[str]] = frozenset({"seed"})

    gpus: Gpus = "8xH200"
    arrivals: Annotated[float, typer.Option(help="People a minute.")] = 6.0
    stay: Annotated[float, typer.Option(help="Seconds they stay, on average.")] = 120.0
    minutes: Annotated[float, typer.Option(help="How long it goes on.")] = 10.0
    failures: Annotated[
        float | None,
        typer.Option(
            help="Hours between failures of a replica; never if nothing is said.", show_default=False
        ),
    ] = None
    recovery: Annotated[float, typer.Option(help="Seconds until a failed replica is back.")] = 30.0
    max_waiting: Annotated[int, typer.Option(help="Places in line; 0 turns away at once.")] = 16
    spread: Annotated[float, typer.Option(help="How much chunk times vary: deviation over mean.")] = 0.03
    seed: Annotated[int, typer.Option(help="The same seed gives the same run.")] = 0
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class FleetDayOptions:
    """Choose the fleet, its cards, and the day that it has."""

    file: Annotated[
        Path, typer.Argument(help="A fleet.toml; or a recorded trace, .json, to run again.", dir_okay=False)
    ]
    gpus: Annotated[str, typer.Option(help="What replicas run on: a card, or here, once calibrated.")] = (
        "H100"
    )
    sessions: Annotated[int, typer.Option(help="Streams at the same time at the peak.")] = 1000
    night: Annotated[float, typer.Option(help="Streams at the other end of the day, as a share of that.")] = (
        0.3
    )
    stay: Annotated[float, typer.Option(help="Seconds people stay, on average.")] = 1800.0
    patience: Annotated[
        float, typer.Option(help="Seconds they wait in line, on average, before they give up.")
    ] = 120.0
    hours: Annotated[float, typer.Option(help="How long it goes on, from midnight.")] = 24.0
    failures: Annotated[float, typer.Option(help="Hours between deaths of a replica, and of a node.")] = 720.0
    start: Annotated[float, typer.Option(help="Seconds until a replica that is started is ready.")] = 120.0
    seed: Annotated[int, typer.Option(help="The same seed gives the same run.")] = 0
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write the day and what promises cost, one file; takes minutes.", show_default=False
        ),
    ] = None
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(PlannedOptions):
    """Choose the number to explain, and what it is about; plans need none of the rest."""

    what: Annotated[
        str,
        typer.Argument(
            help="weights, window, memory, call, period, fps, first-frame, all-reduce, sessions, cost, vae, "
            "bubble or adam; "
            "of a language model parameters, weights, kv, prefill, decode, texts or speculation."
        ),
    ]
    sessions: Sessions = 1
    pipeline: Annotated[
        str, typer.Option(help="For bubble: gpipe, 1f1b, interleaved, zero-bubble-h1 or zero-bubble-h2.")
    ] = "1f1b"
    stages: Annotated[int, typer.Option(help="For bubble: stages of the pipeline.")] = 4
    micro_batches: Annotated[int, typer.Option(help="For bubble: micro-batches of a step.")] = 8
    chunks: Annotated[int, typer.Option(help="For bubble: model chunks per stage, when interleaved.")] = 1
    parameters: Annotated[float, typer.Option(help="For adam: parameters that are trained.")] = 30e9
    zero: Annotated[int, typer.Option(help="For adam: 0, 1, 2 or 3.")] = 3
    shards: Annotated[int, typer.Option(help="For adam: devices that share one copy.")] = 64
    frames: Annotated[
        int | None,
        typer.Option(help="For vae: latent frames decoded at once; a chunk's.", min=1, show_default=False),
    ] = None
    tile: Annotated[
        int | None, typer.Option(help="For vae: side of a tile in pixels; whole.", show_default=False)
    ] = None
    state: Annotated[
        str,
        typer.Option(
            help="For adam: mixed, mixed-fp32-gradients, fp32, bf16 or 8-bit, the precision of what is held."
        ),
    ] = "mixed"
    context: Context = 4096
    batch: Annotated[int, typer.Option(help="For a language model: texts at once.")] = 1
    weights: Annotated[
        str, typer.Option(help="For a language model: native, int8, q8_0, q6_k, q5_k or q4_k.")
    ] = "native"
    num_bytes: Annotated[
        float | None,
        typer.Option("--bytes", help="For all-reduce: of so many bytes over --shards.", show_default=False),
    ] = None
    latency_us: Annotated[
        float | None,
        typer.Option("--latency", help="For all-reduce: us a message; of --gpus' link.", show_default=False),
    ] = None
    bandwidth_gb_s: Annotated[
        float | None,
        typer.Option("--bandwidth", help="For all-reduce: GB/s; of --gpus' link.", show_default=False),
    ] = None
    draft: Annotated[str, typer.Option(help="For speculation: who proposes.")] = "7b"
    accepted: Annotated[
        float, typer.Option(help="For speculation: the share of proposals that are kept.")
    ] = 0.8
    ahead: Annotated[int, typer.Option(help="For speculation: proposals a call.")] = 4
    as_json: Json = False

    def ask_of(self, fleet: Fleet) -> PlanAsk:
        return replace(super().ask_of(fleet), sessions=self.sessions)


@dataclass(frozen=True, kw_only=True)
class PlanTrainOptions:
    """Options of a training plan: which model learns from which, on what, and what is sharded or
    recomputed."""

    student: Annotated[str, typer.Option(help="Who learns: a name, a folder or shapes.")] = "wan2.1-t2v-1.3b"
    teacher: Annotated[str, typer.Option(help="Who is learnt from, frozen.")] = "wan2.1-t2v-14b"
    critic: Annotated[str, typer.Option(help="Who learns to score the student's own streams.")] = (
        "wan2.1-t2v-1.3b"
    )
    gpus: Gpus = "8xH200"
    size: Annotated[str, typer.Option(help="HEIGHTxWIDTH, multiples of 16, for Wan 2.2 of 32.")] = "480x832"
    frames: Annotated[int, typer.Option(help="Latent frames of a rollout.")] = 21
    batch: Annotated[int, typer.Option(help="Rollouts or texts per device and step.")] = 1
    zero: Annotated[
        int, typer.Option(help="0 repeats everything, 1 shards the optimizer, 2 gradients, 3 weights too.")
    ] = 3
    hybrid: Annotated[
        int, typer.Option(help="Devices that share one copy, repeated over the others; 0 for all.")
    ] = 0
    offload: Annotated[bool, typer.Option("--offload", help="Optimizer and averages in host memory.")] = False
    recompute: Annotated[
        str, typer.Option(help="Made again on the way back: none, selective, products or full.")
    ] = "full"
    ema: Annotated[bool, typer.Option(help="Keep averaged weights of the student.")] = True
    lora: Annotated[int, typer.Option(help="Rank of the student's adapters; 0 trains all of it.")] = 0
    context: Context = 4096
    reward: Annotated[
        str | None,
        typer.Option(
            help="For a language model: tune --student by this reward model, with --critic.",
            show_default=False,
        ),
    ] = None
    answer: Annotated[
        int, typer.Option(help="For a language model tuned by reward: tokens of a text that it writes.")
    ] = 1024
    as_json: Json = False

    def refuse_foreign(self, *, is_decoder: bool) -> None:
        """Refuse options that say something of a student of the other kind."""
        foreign, kind = (OF_VIDEO, "video") if is_decoder else (OF_LANGUAGE, "language")
        said = [name for name in foreign if getattr(self, name) != getattr(PlanTrainOptions(), name)]
        if said:
            other = "language" if is_decoder else "video"
            raise ConfigError(
                f"--{said[0]} is of a {kind} model, and {self.student} is one of {other}; leave it out"
            )


OF_VIDEO = ("teacher", "size", "frames", "ema")
"""Options of a video student alone."""
OF_LANGUAGE = ("context", "reward", "answer")
"""Options of a language model alone."""


def _counted(steps: tuple[float, ...], option: str) -> tuple[float, ...]:
    """Noise levels as given, or so many as a single number says, evenly spaced."""
    if len(steps) != 1 or steps[0] == 1000:
        return steps
    if not (0 < steps[0] <= MOST_STEPS and steps[0] == int(steps[0])):
        raise ConfigError(
            f"{option} takes how many there are, 1 to {MOST_STEPS}, or their noise levels: "
            f"1000,750,500,250; got {steps[0]:g}"
        )
    return even_steps(int(steps[0]))
