"""`millstream plan`: how its options are spelled. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli.options import ShapeOptions, grouped
from millstream.cli.parts import plain_errors
from millstream.core.config import parse_size
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
    """A single number up to a hundred is how many steps, spread evenly: nobody runs one at so low a noise."""
    steps = changes.get("steps", ())
    if len(steps) != 1 or not (0 < steps[0] <= MOST_STEPS and steps[0] == int(steps[0])):
        return changes
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


@plan.callback()
@grouped
def search(
    *,
    context: typer.Context,
    on: PromisedOptions,
    shape: ShapeOptions,
    most: Annotated[
        str | None, typer.Option("--max", help="The largest that holds: size, window, sessions or batch.", show_default=False)
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report with plots, one file.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Calculate what fits, how fast it is and which topology to choose, before anything is rented or loaded.

    [bold]Try[/]: millstream plan --model wan2.1-t2v-14b --gpus 4xH200 --size 320x576 --fps 24
    [bold]Or[/]: millstream plan --gpus any --size 480p --sessions 4

    Exit code 1 means that no plan holds the promise; the nearest are shown, with what is in the way.
    """
    if context.invoked_subcommand is not None:
        return
    from millstream.commands.plan.run import PlanRequest, run_plan

    with plain_errors():
        holds = run_plan(PlanRequest(**on.request(shape)), most=most, html=html, as_json=as_json)
    if not holds:
        raise typer.Exit(1)


@plan.command()
@grouped
def scale(
    *,
    on: PlannedOptions,
    shape: ShapeOptions,
    html: Annotated[Path | None, typer.Option(help="Write the curves, one file.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """What more devices buy, from 1 to 1,024: how quick one stream gets, how many all carry, where it stalls and why.

    [bold]Try[/]: millstream plan scale --model wan2.1-t2v-14b --gpus H100 --size 480p --software compiled
    """
    from millstream.commands.plan.run import PlanRequest
    from millstream.commands.plan.scale import run_plan_scale

    with plain_errors():
        run_plan_scale(PlanRequest(**on.request(shape)), html=html, as_json=as_json)


@plan.command()
def calibrate(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Another file than this machine's profile.", show_default=False)
    ] = None,
) -> None:
    """Measure this machine: products, attention, convolutions, copies, launches, and collectives between its ranks.

    Plans use it from then on: for [bold]--gpus here[/], and for a device of the same name. Takes under a minute.
    """
    with plain_errors():
        from millstream.commands.plan.calibrate import calibrate as run
        from millstream.commands.plan.run import profile_path, show_device

        path = out or profile_path()
        show_device(run(device_name=device, out=path))
        typer.echo(path)


@plan.command()
def train(
    student: Annotated[str, typer.Option(help="Who learns: a name, a folder or shapes.")] = "wan2.1-t2v-1.3b",
    teacher: Annotated[str, typer.Option(help="Who is learnt from, frozen.")] = "wan2.1-t2v-14b",
    critic: Annotated[str, typer.Option(help="Who learns to score the student's own streams.")] = "wan2.1-t2v-1.3b",
    gpus: Gpus = "8xH200",
    size: Annotated[str, typer.Option(help="HEIGHTxWIDTH, multiples of 16.")] = "480x832",
    frames: Annotated[int, typer.Option(help="Latent frames of a rollout.")] = 21,
    batch: Annotated[int, typer.Option(help="Rollouts or texts per device and step.")] = 1,
    zero: Annotated[int, typer.Option(help="0 repeats everything, 1 shards the optimizer, 2 gradients, 3 weights too.")] = 3,
    hybrid: Annotated[int, typer.Option(help="Devices that share one copy, repeated over the others; 0 for all.")] = 0,
    offload: Annotated[bool, typer.Option("--offload", help="Optimizer and averages in host memory.")] = False,
    recompute: Annotated[str, typer.Option(help="Activations made again: none, selective or full.")] = "full",
    ema: Annotated[bool, typer.Option(help="Keep averaged weights of the student.")] = True,
    lora: Annotated[int, typer.Option(help="Rank of the student's adapters; 0 trains all of it.")] = 0,
    context: Context = 4096,
    reward: Annotated[
        str | None,
        typer.Option(help="For a language model: tune --student by this reward model, with --critic.", show_default=False),
    ] = None,
    answer: Annotated[int, typer.Option(help="For a language model tuned by reward: tokens of a text that it writes.")] = 1024,
    as_json: Json = False,
) -> None:
    """Can this student be distilled with that teacher and critic on these GPUs, which roles go where, and what syncing costs.

    A language model is trained by itself, or with [bold]--reward[/] tuned by four models.
    [bold]Try[/]: millstream plan train --student 70b --gpus 64xH100 --context 8192

    Exit code 1 means that no placement fits.
    """
    from millstream.commands.plan.language import LanguageRequest, run_plan_language
    from millstream.commands.plan.train import TrainRequest, run_plan_train
    from millstream.planner.language.decoders import is_decoder

    with plain_errors():
        if is_decoder(student):
            if lora or hybrid:
                raise ConfigError("--lora and --hybrid are not planned for language models; leave them out")
            asked = LanguageRequest(
                student=student,
                critic=critic if is_decoder(critic) else student,
                reward=reward,
                gpus=gpus,
                context=context,
                answer=answer,
                batch=batch,
                zero=zero,
                offload=offload,
                recompute=recompute,
            )
            if not run_plan_language(asked, as_json=as_json):
                raise typer.Exit(1)
            return
        request = TrainRequest(
            student=student,
            teacher=teacher,
            critic=critic,
            gpus=gpus,
            size=parse_size(size),
            frames=frames,
            batch=batch,
            zero=zero,
            hybrid=hybrid,
            offload=offload,
            recompute=recompute,
            ema=ema,
            lora=lora,
        )
        fits = run_plan_train(request.ask(), as_json=as_json)
    if not fits:
        raise typer.Exit(1)


@plan.command()
def tune(
    path: Annotated[Path, typer.Argument(metavar="RECIPE", help="Of millstream tune.")],
    gpus: Gpus = "1xH200",
    as_json: Json = False,
) -> None:
    """Where the rollouts and the learning of a tuning by reward go on these GPUs: together, in turns or apart.

    Exit code 1 means that no placement fits.
    """
    from millstream.commands.plan.tune import run_plan_tune

    with plain_errors():
        fits = run_plan_tune(path, gpus, as_json=as_json)
    if not fits:
        raise typer.Exit(1)


@plan.command()
@grouped
def explain(
    *,
    what: Annotated[
        str,
        typer.Argument(
            help="weights, window, memory, call, period, fps, first-frame, all-reduce, sessions, cost, vae, bubble or adam; "
            "of a language model parameters, weights, kv, prefill, decode, texts or speculation."
        ),
    ],
    on: PlannedOptions,
    shape: ShapeOptions,
    sessions: Sessions = 1,
    pipeline: Annotated[
        str, typer.Option(help="For bubble: gpipe, 1f1b, interleaved, zero-bubble-h1 or zero-bubble-h2.")
    ] = "1f1b",
    stages: Annotated[int, typer.Option(help="For bubble: stages of the pipeline.")] = 4,
    micro_batches: Annotated[int, typer.Option(help="For bubble: micro-batches of a step.")] = 8,
    chunks: Annotated[int, typer.Option(help="For bubble: model chunks per stage, when interleaved.")] = 1,
    parameters: Annotated[float, typer.Option(help="For adam: parameters that are trained.")] = 30e9,
    zero: Annotated[int, typer.Option(help="For adam: 0, 1, 2 or 3.")] = 3,
    shards: Annotated[int, typer.Option(help="For adam: devices that share one copy.")] = 64,
    frames: Annotated[
        int | None, typer.Option(help="For vae: latent frames decoded at once; a chunk's.", min=1, show_default=False)
    ] = None,
    tile: Annotated[int | None, typer.Option(help="For vae: side of a tile in pixels; whole.", show_default=False)] = None,
    state: Annotated[
        str, typer.Option(help="For adam: mixed, mixed-fp32-gradients, fp32, bf16 or 8-bit, the precision of what is held.")
    ] = "mixed",
    context: Context = 4096,
    batch: Annotated[int, typer.Option(help="For a language model: texts at once.")] = 1,
    weights: Annotated[str, typer.Option(help="For a language model: native, int8, q8_0, q6_k, q5_k or q4_k.")] = "native",
    num_bytes: Annotated[
        float | None, typer.Option("--bytes", help="For all-reduce: of so many bytes over --shards.", show_default=False)
    ] = None,
    latency: Annotated[
        float | None, typer.Option(help="For all-reduce: us a message; of --gpus' link.", show_default=False)
    ] = None,
    bandwidth: Annotated[float | None, typer.Option(help="For all-reduce: GB/s; of --gpus' link.", show_default=False)] = None,
    draft: Annotated[str, typer.Option(help="For speculation: who proposes.")] = "7b",
    accepted: Annotated[float, typer.Option(help="For speculation: the share of proposals that are kept.")] = 0.8,
    ahead: Annotated[int, typer.Option(help="For speculation: proposals a call.")] = 4,
    as_json: Json = False,
) -> None:
    """A single number with its formula filled in, for checking by hand.

    [bold]Try[/]: millstream plan explain window --model wan2.1-t2v-14b --size 480x832 --window 21
    [bold]Or[/]: millstream plan explain kv --model 70b --context 32768
    """
    from millstream.commands.plan.explain import Assumptions, run_plan_explain
    from millstream.commands.plan.run import PlanRequest

    with plain_errors():
        request = PlanRequest(**on.request(shape), sessions=sessions)
        assumptions = Assumptions(
            pipeline=pipeline,
            stages=stages,
            micro_batches=micro_batches,
            chunks=chunks,
            parameters=parameters,
            zero=zero,
            shards=shards,
            frames=frames,
            tile=tile,
            state=state,
            context=context,
            batch=batch,
            weights=weights,
            num_bytes=num_bytes,
            latency_us=latency,
            bandwidth_gb_s=bandwidth,
            draft=draft,
            accepted=accepted,
            ahead=ahead,
        )
        run_plan_explain(what, request, assumptions, as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class CrowdedOptions(PlannedOptions):
    """The same, on enough devices that several replicas share the people."""

    gpus: Gpus = "8xH200"


@plan.command()
@grouped
def simulate(
    *,
    on: CrowdedOptions,
    shape: ShapeOptions,
    arrivals: Annotated[float, typer.Option(help="People a minute.")] = 6.0,
    stay: Annotated[float, typer.Option(help="Seconds they stay, on average.")] = 120.0,
    minutes: Annotated[float, typer.Option(help="How long it goes on.")] = 10.0,
    failures: Annotated[
        float | None, typer.Option(help="Hours between failures of a replica; never if nothing is said.", show_default=False)
    ] = None,
    recovery: Annotated[float, typer.Option(help="Seconds until a failed replica is back.")] = 30.0,
    max_waiting: Annotated[int, typer.Option(help="Places in line; 0 turns away at once.")] = 16,
    spread: Annotated[float, typer.Option(help="How much chunk times vary: deviation over mean.")] = 0.03,
    seed: Annotated[int, typer.Option(help="The same seed gives the same run.")] = 0,
    as_json: Json = False,
) -> None:
    """A plan with people on it: they arrive, are admitted or wait, watch and leave; replicas queue, jitter and fail.

    [bold]Try[/]: millstream plan simulate --gpus 400xH100 --arrivals 300 --failures 24 --minutes 5
    """
    from millstream.commands.plan.run import PlanRequest
    from millstream.commands.plan.simulate import run_plan_simulate
    from millstream.planner.simulate import Scenario

    with plain_errors():
        scenario = Scenario(
            arrivals_per_minute=arrivals,
            stay_s=stay,
            seconds=60 * minutes,
            hours_between_failures=failures,
            recovery_s=recovery,
            max_waiting=max_waiting,
            spread=spread,
            seed=seed,
        )
        run_plan_simulate(PlanRequest(**on.request(shape)), scenario, as_json=as_json)


@plan.command()
def fleet(
    file: Annotated[Path, typer.Argument(help="A fleet.toml; or a recorded trace, .json, to run again.", dir_okay=False)],
    gpus: Annotated[str, typer.Option(help="What replicas run on: a card, or here, once calibrated.")] = "H100",
    sessions: Annotated[int, typer.Option(help="Streams at the same time at the peak.")] = 1000,
    night: Annotated[float, typer.Option(help="Streams at the other end of the day, as a share of that.")] = 0.3,
    stay: Annotated[float, typer.Option(help="Seconds people stay, on average.")] = 1800.0,
    patience: Annotated[float, typer.Option(help="Seconds they wait in line, on average, before they give up.")] = 120.0,
    hours: Annotated[float, typer.Option(help="How long it goes on, from midnight.")] = 24.0,
    failures: Annotated[float, typer.Option(help="Hours between deaths of a replica, and of a node.")] = 720.0,
    start: Annotated[float, typer.Option(help="Seconds until a replica that is started is ready.")] = 120.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same run.")] = 0,
    html: Annotated[
        Path | None, typer.Option(help="Write the day and what promises cost, one file; takes minutes.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """A day of a fleet on paper, by the policy that runs real ones: what it costs, who waits, what deaths and moves do.

    [bold]Try[/]: millstream plan fleet fleet.toml --gpus B200 --sessions 1000
    """
    from millstream.commands.plan.fleet import run_plan_fleet
    from millstream.fleet.day import Day
    from millstream.fleet.trace import Times

    with plain_errors():
        day = Day(
            sessions=sessions,
            night=night,
            stay_s=stay,
            patience_s=patience,
            seconds=3600 * hours,
            hours_between_deaths=failures,
            seed=seed,
        )
        run_plan_fleet(file, day, gpus=gpus, times=Times(start_s=start), html=html, as_json=as_json)
