"""`plan train` and `plan tune`: how their options are spelled."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.options import grouped
from millstream.cli.parts import plain_errors
from millstream.cli.plan.options import Context, Gpus, Json, plan
from millstream.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TrainedOptions:
    """Who learns from whom, on what, and what is shared out or made again."""

    student: Annotated[str, typer.Option(help="Who learns: a name, a folder or shapes.")] = "wan2.1-t2v-1.3b"
    teacher: Annotated[str, typer.Option(help="Who is learnt from, frozen.")] = "wan2.1-t2v-14b"
    critic: Annotated[str, typer.Option(help="Who learns to score the student's own streams.")] = "wan2.1-t2v-1.3b"
    gpus: Gpus = "8xH200"
    size: Annotated[str, typer.Option(help="HEIGHTxWIDTH, multiples of 16.")] = "480x832"
    frames: Annotated[int, typer.Option(help="Latent frames of a rollout.")] = 21
    batch: Annotated[int, typer.Option(help="Rollouts or texts per device and step.")] = 1
    zero: Annotated[int, typer.Option(help="0 repeats everything, 1 shards the optimizer, 2 gradients, 3 weights too.")] = 3
    hybrid: Annotated[int, typer.Option(help="Devices that share one copy, repeated over the others; 0 for all.")] = 0
    offload: Annotated[bool, typer.Option("--offload", help="Optimizer and averages in host memory.")] = False
    recompute: Annotated[str, typer.Option(help="Made again on the way back: none, selective, products or full.")] = "full"
    ema: Annotated[bool, typer.Option(help="Keep averaged weights of the student.")] = True
    lora: Annotated[int, typer.Option(help="Rank of the student's adapters; 0 trains all of it.")] = 0
    context: Context = 4096
    reward: Annotated[
        str | None,
        typer.Option(help="For a language model: tune --student by this reward model, with --critic.", show_default=False),
    ] = None
    answer: Annotated[int, typer.Option(help="For a language model tuned by reward: tokens of a text that it writes.")] = 1024


OF_VIDEO, OF_LANGUAGE = ("teacher", "size", "frames", "ema"), ("context", "reward", "answer")
"""What is said of a student of one kind alone."""


def refuse_foreign(on: TrainedOptions, *, is_decoder: bool) -> None:
    foreign, kind = (OF_VIDEO, "video") if is_decoder else (OF_LANGUAGE, "language")
    said = [name for name in foreign if getattr(on, name) != getattr(TrainedOptions(), name)]
    if said:
        other = "language" if is_decoder else "video"
        raise ConfigError(f"--{said[0]} is of a {kind} model, and {on.student} is one of {other}; leave it out")


@plan.command()
@grouped
def train(*, on: TrainedOptions, as_json: Json = False) -> None:
    """Can this student be distilled with that teacher and critic on these GPUs, which roles go where, and what syncing costs.

    A language model is trained by itself, or with [bold]--reward[/] tuned by four models.
    [bold]Try[/]: millstream plan train --student 70b --gpus 64xH100 --context 8192

    Exit code 1 means that no placement fits.
    """
    from millstream.commands.plan.language import run_plan_language
    from millstream.commands.plan.train import TrainRequest, run_plan_train
    from millstream.planner.language.decoders import is_decoder

    with plain_errors():
        refuse_foreign(on, is_decoder=is_decoder(on.student))
        run = run_plan_language if is_decoder(on.student) else run_plan_train
        fits = run(TrainRequest(**asdict(on)), as_json=as_json)
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
