"""`millstream train eval`: streams of a trained Brook, judged by the classifier that learnt from renders
alone."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from millstream.commands.engine_from_options import resolve
from millstream.commands.options import ModelOptions
from millstream.commands.progress import counting_bar
from millstream.core.config import StreamConfig
from millstream.core.errors import ConfigError
from millstream.core.files import write_whole
from millstream.core.schedule import even_steps
from millstream.engine.engine import Engine
from millstream.report.plots import require_matplotlib
from millstream.train.data.vocabulary import CLASSES
from millstream.train.evaluate.adherence import Adherence, Judgement, adherence_ticks, judge_prompts
from millstream.train.evaluate.classifier import FRAMES, JUDGE, AttributeNet, load_classifier
from millstream.train.evaluate.metrics import mean
from millstream.train.evaluate.motion import MOTIONS, load_motion_judge
from millstream.train.evaluate.plots import write_plots
from millstream.train.evaluate.response import (
    MODES,
    PROMPT,
    Response,
    draw_pairs,
    measure_response,
    response_ticks,
)
from millstream.train.evaluate.walks import (
    SteeringFigures,
    actions_of_model,
    measure_steering,
    steering_ticks,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRequest:
    weights: str
    classifier: Path | None
    """None for the one that comes with the package."""
    count: int
    """Prompts of each kind, and walks."""
    seconds: tuple[float, ...]
    response_pairs: int
    """Prompt switches in each mode; 0 measures none."""
    steps: int | None
    """Steps a chunk, evenly spaced; None for the model's own."""
    precision: str
    device: str
    out: Path | None
    plots: Path | None
    motion: Path | None = None
    """Judge of motion, of a model that is steered by keys; None: nobody walks."""

    def __post_init__(self) -> None:
        if self.count < 2 or self.response_pairs < 0:
            raise ConfigError(
                f"give at least 2 prompts and 0 switches, got {self.count} and {self.response_pairs}"
            )
        least = (FRAMES - 1) / 16
        if self.seconds[0] < least or any(
            later <= earlier for earlier, later in itertools.pairwise(self.seconds)
        ):
            raise ConfigError(f"--seconds must rise from {least:g} or more, for example 2,10,30,120")


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """All that was measured, and what of."""

    weights: str
    fingerprint: str
    device: str
    dtype: str
    int8: bool
    steps: tuple[float, ...]
    adherence: tuple[Adherence, ...]
    response: tuple[Response, ...]
    """Empty where none was asked for, or where the judge recognises no scene at a glimpse."""
    steering: SteeringFigures | None
    """None where no judge of motion was given."""


def run_train_eval(request: EvalRequest) -> Figures:
    if request.plots is not None:
        require_matplotlib("--plots")  # now, not after minutes
    asked = ModelOptions(
        weights=[request.weights], device=request.device, precision=request.precision, fast="off"
    )
    engine = Engine(resolve(asked))
    if request.motion is not None:
        actions_of_model(engine.model)  # now, not after minutes
    judge = load_classifier(request.classifier or JUDGE, engine.device)
    config = (
        engine.stream_config()
        if request.steps is None
        else engine.stream_config(steps=even_steps(request.steps))
    )
    figures = Figures(
        weights=request.weights,
        fingerprint=engine.model.fingerprint(),
        device=engine.device.type,
        dtype=str(engine.dtype).removeprefix("torch."),
        int8=engine.speed.int8,
        steps=config.steps,
        adherence=tuple(_adherence(engine, judge, config, request)),
        response=tuple(_responses(engine, judge, config, request.response_pairs)),
        steering=_steering(engine, judge, config, request),
    )
    Console().print(_adherence_table(figures.adherence))
    if figures.response:
        Console().print(_response_table(figures.response))
    elif request.response_pairs:
        Console().print(
            "no response: at a glimpse the judge recognises none of the scenes that prompts switch to"
        )
    if figures.steering is not None:
        Console().print(_steering_table(figures.steering))
    if request.out is not None:
        write_whole(request.out, json.dumps(asdict(figures), indent=2) + "\n")
    if request.plots is not None:
        write_plots(request.plots, figures.adherence, figures.response)
    return figures


def _adherence(
    engine: Engine, judge: AttributeNet, config: StreamConfig, request: EvalRequest
) -> Iterator[Adherence]:
    chunks = adherence_ticks(request.count, request.seconds[-1], config, engine.device)
    for name, held_out in (("seen", False), ("held out", True)):
        with counting_bar(name, chunks) as tick:
            yield judge_prompts(
                engine.model,
                judge,
                config=config,
                held_out=held_out,
                count=request.count,
                seconds=request.seconds,
                tick=tick,
            )


def _responses(engine: Engine, judge: AttributeNet, config: StreamConfig, count: int) -> Iterator[Response]:
    if not count:
        return
    pairs = draw_pairs(judge, count, config=config, device=engine.device)
    for mode in MODES if len(pairs) else ():
        with counting_bar(mode, response_ticks(len(pairs), engine.device)) as tick:
            yield measure_response(engine.model, judge, pairs, mode, config=config, tick=tick)


def _steering(
    engine: Engine, judge: AttributeNet, config: StreamConfig, request: EvalRequest
) -> SteeringFigures | None:
    if request.motion is None:
        return None
    motion = load_motion_judge(request.motion, engine.device)
    seconds = request.seconds[-1]
    ticks = steering_ticks(request.count, seconds, config, engine.model)
    with counting_bar("walks", ticks) as tick:
        return measure_steering(
            engine.model, motion, judge, config=config, count=request.count, seconds=seconds, tick=tick
        )


def _steering_table(found: SteeringFigures) -> Table:
    """A row for each way to move."""
    table = Table(
        "motion", "correlation", "right side", "drift a second", "frames", title="motion under keys"
    )
    figures = found.streamed
    for name in MOTIONS:
        table.add_row(
            name,
            *(
                "-" if found is None else f"{found:.2f}"
                for found in (figures.correlation[name], figures.right_sign[name], figures.drift[name])
            ),
            str(figures.frames[name]),
        )
    table.caption = "drift while nothing is held, in metres ahead and aside, in degrees turned and tilted"
    return table


def _adherence_table(adherence: Sequence[Adherence]) -> Table:
    """A column for each set of prompts at each moment; before them what the judge makes of renders: a poor
    judge shows."""
    columns: dict[str, dict[str, str]] = {}
    for each in adherence:
        shares = {"mean": mean(each.real), **each.real}
        columns[f"{each.prompts}, renders"] = {name: f"{share:.3f}" for name, share in shares.items()}
        columns |= {f"{each.prompts}, {moment.second:g} s": _spelled(moment) for moment in each.moments}
    table = Table("", *columns, title="adherence, relative to renders")
    for name in ("mean", "95%", *CLASSES, "most lost", "distance", "edges", "flicker"):
        table.add_row(
            name,
            *(cells.get(name, "") for cells in columns.values()),
            end_section=name in ("95%", "most lost"),
        )
    starts = ", ".join(f"{each.prompts} {each.first_edges:.2f}" for each in adherence)
    table.caption = (
        f"edges and flicker relative to the VAE's reconstructions; edges of the first chunk: {starts}"
    )
    return table


def _spelled(moment: Judgement) -> dict[str, str]:
    low, high = moment.interval
    return {
        "mean": f"{moment.mean:.3f}",
        "95%": f"{low:.2f}-{high:.2f}",
        **{name: f"{share:.3f}" for name, share in moment.adherence.items()},
        "most lost": f"{moment.lost:.3f}",
        "distance": f"{moment.distance:.1f}",
        "edges": f"{moment.edges:.2f}",
        "flicker": f"{moment.flicker:.2f}",
    }


def _response_table(responses: Sequence[Response]) -> Table:
    table = Table(
        "mode",
        "switches",
        "median",
        "mean",
        f"within {PROMPT}",
        "never",
        title="chunks until a switched prompt is recognised",
    )
    for each in responses:
        shares = f"{each.median:g}", f"{each.mean:.2f}", f"{each.prompt:.0%}", str(each.never)
        table.add_row(each.mode, str(len(each.chunks)), *shares)
    return table
