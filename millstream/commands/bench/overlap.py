"""`millstream bench overlap`: front and mesh as real processes, over queue depths and anchors.

Stages sleep to a set length, so that what shows is what the order of work, the queues and the wire make of
it; or they are a model's own, and the times are what they take here. Where both share one GPU, its time is
shared out between them, and each takes longer than alone: a score then says that neither waits for the
other's messages, not what a second card would bring.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from millstream.commands.bench.queued import QueuedBytes
from millstream.commands.engine_from_options import open_engine
from millstream.commands.report import describe, make_folder, tell
from millstream.core.config import Anchor
from millstream.core.controls import WeightedPrompt
from millstream.core.engine_config import EngineConfig
from millstream.core.errors import ConfigError
from millstream.core.examples import DEFAULT_PROMPT
from millstream.core.overlap import LEFT_OUT, ChunkPace, Overlap, overlap_of
from millstream.core.presets import find_model
from millstream.core.topology import Topology
from millstream.core.undo import undone_by
from millstream.engine.depths import Depths
from millstream.engine.engine import Engine, stream_config
from millstream.engine.stream import Stream
from millstream.mesh.launch import launcher
from millstream.mesh.paced import PacedVAE, run_paced_rank
from millstream.report.plots import TimelineBar, require_matplotlib, timelines
from millstream.session.session import Session

ANCHOR_SHARE = 0.1
"""Share of the front's time for a chunk that encoding one picture is assumed to take."""
SHOWN = 6
"""Chunks of each run in a plot."""
STREAM: dict[str, Any] = dict(height=32, width=48, window=6)


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapRequest:
    stage0_ms: float = 185.0
    stage1_ms: float = 805.0
    scale: float = 0.1
    chunks: int = 40
    topology: Topology = Topology(front_apart=True)  # noqa: RUF009 - frozen
    engine: EngineConfig | None = None
    """The model whose stages are real; None where they sleep."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of its StreamConfig that were given."""

    def __post_init__(self) -> None:
        if self.topology.is_local:
            raise ConfigError("overlap needs a front and a mesh; give --topology front+1 or a larger one")
        if min(self.stage0_ms, self.stage1_ms, self.scale) <= 0:
            raise ConfigError("--stages and --scale must be above 0")
        if not LEFT_OUT + 2 <= self.chunks <= 10_000:
            raise ConfigError(
                f"--chunks must be {LEFT_OUT + 2} to 10000, since {LEFT_OUT} do not count; got {self.chunks}"
            )

    @property
    def front_ms(self) -> float:
        return self.scale * self.stage0_ms

    @property
    def mesh_ms(self) -> float:
        return self.scale * self.stage1_ms

    @property
    def anchor_ms(self) -> float:
        """Decoding the first of a chunk's latents, and encoding its picture."""
        return self.front_ms / 3 + self.encode_ms

    @property
    def encode_ms(self) -> float:
        return ANCHOR_SHARE * self.front_ms


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapSetting:
    """One line of the table."""

    anchor: Anchor = "off"
    depths: Depths = Depths()  # noqa: RUF009 - frozen

    @property
    def name(self) -> str:
        order = "send first" if self.depths.send_first else "decode first"
        return f"anchor {self.anchor}, {order}, d_in {self.depths.d_in}, d_out {self.depths.d_out}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    setting: OverlapSetting
    overlap: Overlap
    queued_bytes: int
    """Latents that the front held of chunks not shown yet, at most."""
    paces: tuple[ChunkPace, ...]


def settings(depths: Sequence[int] = (1, 2, 3, 4)) -> Iterator[OverlapSetting]:
    """The sweep: queues one by one, then what a chunk that depends on the last one makes of it."""
    for d_in in depths:
        for d_out in depths:
            yield OverlapSetting(depths=Depths(d_in=d_in, d_out=d_out))
    yield OverlapSetting(depths=Depths(d_in=1, d_out=1, send_first=False))
    yield OverlapSetting(anchor="latent")
    yield OverlapSetting(anchor="decoded", depths=Depths(send_first=False))
    yield OverlapSetting(anchor="decoded", depths=Depths(send_first=True))


def run_bench_overlap(request: OverlapRequest, *, as_json: bool, out: Path | None, plot: Path | None) -> None:
    make_folder(out)
    make_folder(plot)
    if plot is not None:
        require_matplotlib("--plot")
    measured = [*measure(request, settings() if request.engine is None else settings(depths=(2,)))]
    report = describe("overlap", _spelled(request), {"runs": [_figures(each) for each in measured]})
    if plot is not None:
        _draw(plot, measured)
    tell(report, as_json=as_json, out=out, show=lambda: Console().print(_table(request, measured)))


def measure(
    request: OverlapRequest, chosen: Iterator[OverlapSetting] | Sequence[OverlapSetting]
) -> Iterator[Measured]:
    """Each setting on the same mesh, with a session of its own."""
    with _sleeping(request) if request.engine is None else _real(request.engine, request) as engine:
        for setting in chosen:
            yield _measure(engine, request, setting)


def _sleeping(request: OverlapRequest) -> Engine:
    torch.set_num_threads(1)
    return Engine(
        "wan-tiny",
        weights="random",
        device="cpu",
        dtype="float32",
        topology=request.topology,
        launch=partial(launcher, run=partial(run_paced_rank, stage1_ms=request.mesh_ms)),
    )


def _real(config: EngineConfig, request: OverlapRequest) -> Engine:
    """With calls recorded and kernels built: a later session finds them."""
    stream = stream_config(find_model(config.model).stream, None, **request.changes)
    engine = open_engine(config, stream)
    with undone_by(engine.close), engine.session(DEFAULT_PROMPT, config=stream) as session:
        engine.warm_up(session)
    return engine


def _measure(engine: Engine, request: OverlapRequest, setting: OverlapSetting) -> Measured:
    parts = engine.parts
    changes = request.changes
    config = engine.stream_config(**(STREAM if request.engine is None else changes), anchor=setting.anchor)
    if request.engine is None:
        vae = PacedVAE(
            engine.spec.dit.channels,
            config.frames_per_chunk,
            request.front_ms,
            request.encode_ms,
            engine.spec.stride,
        )
        parts = replace(parts, vae=vae)
    with Session(setting.name.replace(" ", "-"), config, (WeightedPrompt(DEFAULT_PROMPT),), parts) as session:
        queued = QueuedBytes(engine.transport.post)
        stream = Stream(session, queued.post, setting.depths, engine.parts.stopwatch)
        for _ in stream.stream(request.chunks):
            pass
    return Measured(
        setting=setting,
        overlap=overlap_of(list(stream.paces)),
        queued_bytes=queued.most,
        paces=tuple(stream.paces),
    )


def _figures(measured: Measured) -> dict[str, Any]:
    figures = {name: round(value, 3) for name, value in asdict(measured.overlap).items()}
    signature = measured.overlap.signature
    return {
        "setting": measured.setting.name,
        **figures,
        "signature": signature,
        "queued_bytes": measured.queued_bytes,
    }


def _spelled(request: OverlapRequest) -> dict[str, Any]:
    asked = asdict(request) | {"topology": str(request.topology), "left_out": LEFT_OUT}
    left_out = ("engine", "changes") if request.engine is None else ("stage0_ms", "stage1_ms", "scale")
    return {name: value for name, value in asked.items() if name not in left_out}


def _table(request: OverlapRequest, measured: Sequence[Measured]) -> Table:
    stages = f"front {request.front_ms:g} ms, mesh {request.mesh_ms:g} ms, anchor {request.anchor_ms:.1f} ms"
    if request.engine is not None:
        first = measured[0].overlap
        stages = f"{request.engine.model}, front {first.stage0_ms:.1f} ms, mesh {first.stage1_ms:.1f} ms"
    columns = ("anchor", "first", "in", "out", "score", "period", "idle", "latency", "KiB", "signature")
    table = Table(*columns, title=f"{request.topology}: {stages}; times in ms", title_justify="left")
    for each in measured:
        overlap = each.overlap
        setting = each.setting
        table.add_row(
            setting.anchor,
            "send" if setting.depths.send_first else "decode",
            str(setting.depths.d_in),
            str(setting.depths.d_out),
            f"{overlap.score:.2f}",
            f"{overlap.period_ms:.1f}",
            f"{overlap.idle_ms:.1f}",
            f"{overlap.latency_ms:.0f}",
            f"{each.queued_bytes / 1024:.0f}",
            overlap.signature,
        )
    return table


def _draw(path: Path, measured: Sequence[Measured]) -> None:
    shown = [
        each for each in measured if (each.setting.depths.d_in, each.setting.depths.d_out) in ((1, 1), (2, 2))
    ]
    timelines(path, {each.setting.name: bars_of(each.paces) for each in shown}, rows=("mesh", "front"))


def bars_of(paces: Sequence[ChunkPace]) -> list[TimelineBar]:
    """The mesh's and the front's part of a few chunks from the middle of a run, in milliseconds from the
    first."""
    middle = len(paces) // 2
    shown = paces[middle : middle + SHOWN]
    start_s = min(each.back_s - each.stage1_ms / 1e3 for each in shown)
    bars = []
    for each in shown:
        number = each.chunk_index
        mesh_s = each.back_s - each.stage1_ms / 1e3
        front_s = each.decode_start_s
        bars += [
            TimelineBar(
                row="mesh", number=number, begin_ms=1e3 * (mesh_s - start_s), length_ms=each.stage1_ms
            ),
            TimelineBar(
                row="front",
                number=number,
                begin_ms=1e3 * (front_s - start_s),
                length_ms=1e3 * (each.shown_s - front_s),
            ),
        ]
    return bars
