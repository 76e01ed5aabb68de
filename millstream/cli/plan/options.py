"""What several commands of `millstream plan` ask, and the group that they are of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli.options import ShapeOptions
from millstream.core.errors import ConfigError

plan = typer.Typer(
    name="plan",
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
    help="Calculate what fits, how fast it is and which topology to choose, before anything is rented or loaded.",
    rich_markup_mode="rich",
)

Model = Annotated[
    str,
    typer.Option("--model", "-m", help="A registered model, a checkpoint's folder, or layers=30,width=1536,heads=12,ffn=8960."),
]
Gpus = Annotated[
    str,
    typer.Option(
        help="How many of what: 4xH200, RTX4090, laptop-cpu; here, once calibrated; H100,4xRTX4090@0.40 to choose from; "
        "anyxH100 for as many as it takes, any for any card."
    ),
]
Sessions = Annotated[int, typer.Option(help="Streams at the same time.")]
Context = Annotated[int, typer.Option(help="For a language model: tokens of a text.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]


@dataclass(frozen=True, kw_only=True)
class PlannedOptions:
    """Which model, at which rate, by whose kernels, on which devices."""

    model: Model = "wan2.1-t2v-1.3b"
    gpus: Gpus = "1xH200"
    fps: Annotated[float | None, typer.Option(help="Frames a second promised to each session.", show_default=False)] = None
    software: Annotated[
        str | None,
        typer.Option(
            help="Whose kernels: fast, eager, compiled, reference (Self-Forcing's), wan, diffusers, xdit, fastvideo, sglang, "
            "lightx2v, krea, flashdreams or processor; fast on GPUs.",
            show_default=False,
        ),
    ] = None
    topology: Annotated[
        str | None,
        typer.Option(help="Only this one, not the best: local, front+1, tp2, front+pp2xtp2.", show_default=False),
    ] = None

    def request(self, shape: ShapeOptions) -> dict[str, Any]:
        """Fields of a PlanRequest, for streams of that shape."""
        changes = _counted(shape.changes()) | ({} if self.fps is None else {"fps": self.fps})
        return dict(model=self.model, gpus=self.gpus, changes=changes, software=self.software, topology=self.topology)


MOST_STEPS = 100


def _counted(changes: dict[str, Any]) -> dict[str, Any]:
    """A single number is how many steps, spread evenly, but for 1000: one, from pure noise."""
    steps = changes.get("steps", ())
    if len(steps) != 1 or steps[0] == 1000:
        return changes
    if not (0 < steps[0] <= MOST_STEPS and steps[0] == int(steps[0])):
        raise ConfigError(
            f"--steps takes how many there are, 1 to {MOST_STEPS}, or their noise levels: 1000,750,500,250; got {steps[0]:g}"
        )
    count = int(steps[0])
    return {**changes, "steps": tuple(1000 * (1 - number / count) for number in range(count))}


@dataclass(frozen=True, kw_only=True)
class PromisedOptions(PlannedOptions):
    """The same, for how many, under which promise and at what price."""

    sessions: Sessions = 1
    first_frame: Annotated[float | None, typer.Option(help="Most seconds until the first frame.", show_default=False)] = None
    schedule: Annotated[
        str | None, typer.Option(help="self-forcing, krea, streamdiffusion-v2 or longlive.", show_default=False)
    ] = None
    precision: Annotated[str, typer.Option(help="Of products: native (bf16) or fp8.")] = "native"
    batch: Annotated[int, typer.Option(help="Sessions that share their model calls.")] = 1
    video_in: Annotated[bool, typer.Option("--video-in", help="Video to video: pictures are encoded too.")] = False
    price: Annotated[
        float | None, typer.Option(help="Dollars per device and hour, instead of an assumed price.", show_default=False)
    ] = None
    profile: Annotated[
        Path | None, typer.Option(help="Another calibration than this machine's.", show_default=False, dir_okay=False)
    ] = None
    gpu_file: Annotated[
        Path | None,
        typer.Option(help="A card of your own, in TOML: docs/planning.md has one.", show_default=False, dir_okay=False),
    ] = None
    stream_batch: Annotated[bool, typer.Option("--stream-batch", help="All noise levels of a stream in one call.")] = False
    commit: Annotated[bool, typer.Option(help="Run each finished chunk once more for its keys.")] = True
    guidance: Annotated[bool, typer.Option("--guidance", help="Run each step with the prompt and without it.")] = False
    clip: Annotated[
        int | None, typer.Option(help="Frames of a clip made at once, as models that do not stream do: 81.", show_default=False)
    ] = None
    vae: Annotated[str, typer.Option(help="full, or tiny: TAEHV's decoder.")] = "full"
    text: Annotated[str, typer.Option(help="Text encoder: on the device, visiting it for each prompt, or on the cpu.")] = (
        "device"
    )
    weights: Annotated[str, typer.Option(help="As kept in memory: native, int8, or as GGUF q8_0, q6_k, q5_k, q4_k.")] = "native"

    def request(self, shape: ShapeOptions) -> dict[str, Any]:
        return super().request(shape) | dict(
            sessions=self.sessions,
            first_frame_s=self.first_frame,
            schedule=self.schedule,
            precision=self.precision,
            batch=self.batch,
            video_in=self.video_in,
            price=self.price,
            profile=self.profile,
            gpu_file=self.gpu_file,
            stream_batch=self.stream_batch,
            commit=self.commit,
            guidance=self.guidance,
            clip=self.clip,
            decoder=self.vae,
            text_place=self.text,
            weights=self.weights,
        )
