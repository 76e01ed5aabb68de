"""`plan explain`: how its options are spelled."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from millstream.cli.options import ShapeOptions, grouped
from millstream.cli.parts import plain_errors
from millstream.cli.plan.options import Context, Json, PlannedOptions, Sessions, plan


@dataclass(frozen=True, kw_only=True)
class AssumedOptions:
    """What is asked about single numbers; plans need none of it."""

    pipeline: Annotated[str, typer.Option(help="For bubble: gpipe, 1f1b, interleaved, zero-bubble-h1 or zero-bubble-h2.")] = (
        "1f1b"
    )
    stages: Annotated[int, typer.Option(help="For bubble: stages of the pipeline.")] = 4
    micro_batches: Annotated[int, typer.Option(help="For bubble: micro-batches of a step.")] = 8
    chunks: Annotated[int, typer.Option(help="For bubble: model chunks per stage, when interleaved.")] = 1
    parameters: Annotated[float, typer.Option(help="For adam: parameters that are trained.")] = 30e9
    zero: Annotated[int, typer.Option(help="For adam: 0, 1, 2 or 3.")] = 3
    shards: Annotated[int, typer.Option(help="For adam: devices that share one copy.")] = 64
    frames: Annotated[
        int | None, typer.Option(help="For vae: latent frames decoded at once; a chunk's.", min=1, show_default=False)
    ] = None
    tile: Annotated[int | None, typer.Option(help="For vae: side of a tile in pixels; whole.", show_default=False)] = None
    state: Annotated[
        str, typer.Option(help="For adam: mixed, mixed-fp32-gradients, fp32, bf16 or 8-bit, the precision of what is held.")
    ] = "mixed"
    context: Context = 4096
    batch: Annotated[int, typer.Option(help="For a language model: texts at once.")] = 1
    weights: Annotated[str, typer.Option(help="For a language model: native, int8, q8_0, q6_k, q5_k or q4_k.")] = "native"
    num_bytes: Annotated[
        float | None, typer.Option("--bytes", help="For all-reduce: of so many bytes over --shards.", show_default=False)
    ] = None
    latency_us: Annotated[
        float | None, typer.Option("--latency", help="For all-reduce: us a message; of --gpus' link.", show_default=False)
    ] = None
    bandwidth_gb_s: Annotated[
        float | None, typer.Option("--bandwidth", help="For all-reduce: GB/s; of --gpus' link.", show_default=False)
    ] = None
    draft: Annotated[str, typer.Option(help="For speculation: who proposes.")] = "7b"
    accepted: Annotated[float, typer.Option(help="For speculation: the share of proposals that are kept.")] = 0.8
    ahead: Annotated[int, typer.Option(help="For speculation: proposals a call.")] = 4


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
    assumed: AssumedOptions,
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
        run_plan_explain(what, request, Assumptions(**asdict(assumed)), as_json=as_json)
