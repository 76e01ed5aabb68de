"""`millstream bench quality`: what a speed-up costs, chunk by chunk, against the plain path in bfloat16 and
in float32.

The same prompt, seed and weights stream three times, each feeding on its own past, as a viewer would see it.
Latents are compared as numbers, frames as pictures; a trained Brook is also judged for how well it keeps to
prompts.
"""

from __future__ import annotations

import gc
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor

from millstream.commands.bench.adherence import compare_adherence
from millstream.commands.engine_from_options import open_engine
from millstream.commands.memory import plain_out_of_memory
from millstream.commands.report import describe, make_folder, spelled, tell
from millstream.core.config import StreamConfig
from millstream.core.engine_config import EngineConfig
from millstream.core.errors import ConfigError
from millstream.core.examples import DEFAULT_PROMPT
from millstream.core.presets import find_model
from millstream.core.speed import Speed
from millstream.engine.engine import stream_config
from millstream.engine.pipeline import ChunkPipeline, raise_failure
from millstream.session.chunk import Chunk, PendingChunk

INFINITE_DB = 99.0
"""Stands for the PSNR of equal pictures, which JSON cannot hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityRequest:
    """Its dtype is not asked for: bfloat16 and float32 are what is compared."""

    engine: EngineConfig
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of StreamConfig that were given."""
    chunks: int = 6
    exact: bool = True
    """True to run float32 too."""
    prompts: int = 0
    """For Brook: prompts whose adherence is judged, plain and fast."""

    def __post_init__(self) -> None:
        if not 1 <= self.chunks <= 1000:
            raise ConfigError(f"--chunks must be 1 to 1000, got {self.chunks}")
        if self.prompts and self.engine.model != "brook":
            raise ConfigError(
                f"--prompts are judged by what knows Brook's world alone, not {self.engine.model}; leave it "
                "out"
            )


@dataclass(frozen=True, slots=True)
class Streamed:
    """Latents and frames of one run, on the host."""

    latents: list[Tensor]
    frames: list[NDArray[np.uint8]]

    def record(self, pending: PendingChunk, chunk: Chunk) -> None:
        self.latents.append(pending.latents.float().cpu())
        self.frames.append(chunk.frames)


def run_bench_quality(request: QualityRequest, *, as_json: bool, out: Path | None) -> dict[str, Any]:
    make_folder(out)
    config = stream_config(find_model(request.engine.model).stream, None, **request.changes)
    with plain_out_of_memory():
        measured = {"streams": measure(request, config), **judged(request)}
    report = describe("quality", spelled(request) | {"stream": asdict(config)}, measured)
    tell(report, as_json=as_json, out=out, show=lambda: show(measured, Console()))
    return report


def measure(request: QualityRequest, config: StreamConfig) -> dict[str, Any]:
    fast = _stream(request, config, "bfloat16", request.engine.speed)
    plain = _stream(request, config, "bfloat16", Speed())
    found = {"fast against bfloat16": compare(fast, plain)}
    if request.exact:
        exact = _stream(request, config, "float32", Speed())
        found["fast against float32"] = compare(fast, exact)
        found["bfloat16 against float32"] = compare(plain, exact)
    return found


def judged(request: QualityRequest) -> dict[str, Any]:
    """Empty where not asked for."""
    if not request.prompts:
        return {}
    on = request.engine
    return {"adherence": compare_adherence(on.weights, on.speed, device=on.device, count=request.prompts)}


def _stream(request: QualityRequest, config: StreamConfig, dtype: str, speed: Speed) -> Streamed:
    """In an engine of its own, which is gone afterwards: three would not fit beside each other."""
    rounded = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False  # float32 is to be float32
    engine = open_engine(replace(request.engine, dtype=dtype, speed=speed))
    streamed = Streamed([], [])
    with engine.session(DEFAULT_PROMPT, config=config) as session:
        pipeline = ChunkPipeline(
            engine.transport.post,
            engine.depths,
            engine.parts.stopwatch,
            shown=streamed.record,
            failed=raise_failure,
        )
        for _ in range(request.chunks):
            decision = session.decide()
            assert decision is not None, "nothing stops this stream"
            pipeline.turn([PendingChunk(session, decision)])
        pipeline.show()
    del engine, session
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    torch.backends.cudnn.allow_tf32 = rounded
    return streamed


def compare(found: Streamed, wanted: Streamed) -> dict[str, Any]:
    """Over all chunks, and the relative error of each: whether it grows is worth seeing."""
    assert found.latents, "there is no chunk to compare"
    differences = [a - b for a, b in zip(found.latents, wanted.latents, strict=True)]
    relative = [float(d.norm() / b.norm()) for d, b in zip(differences, wanted.latents, strict=True)]
    decibels = [psnr(a, b) for a, b in zip(found.frames, wanted.frames, strict=True)]
    return {
        "latents_relative": math.sqrt(sum(error**2 for error in relative) / len(relative)),
        "latents_mean": float(torch.cat([d.abs().flatten() for d in differences]).mean()),
        "latents_largest": max(float(d.abs().max()) for d in differences),
        "psnr_db": sum(decibels) / len(decibels),
        "psnr_db_lowest": min(decibels),
        "relative_by_chunk": relative,
        "psnr_db_by_chunk": decibels,
    }


def psnr(found: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> float:
    assert found.shape == wanted.shape, f"pictures {found.shape} against {wanted.shape}"
    error = float(np.mean((found.astype(np.float32) - wanted.astype(np.float32)) ** 2))
    return INFINITE_DB if error == 0 else min(INFINITE_DB, 10 * math.log10(255.0**2 / error))


def show(measured: dict[str, Any], console: Console) -> None:
    table = Table("", "latents, relative", "mean", "largest", "PSNR dB", "lowest")
    for name, found in measured["streams"].items():
        figures = (found["latents_relative"], found["latents_mean"], found["latents_largest"])
        decibels = (found["psnr_db"], found["psnr_db_lowest"])
        table.add_row(name, *(f"{value:.4f}" for value in figures), *(f"{value:.1f}" for value in decibels))
    console.print(table)
    if "adherence" in measured:
        found = measured["adherence"]
        pairs = zip(found["seconds"], found["plain"], found["fast"], strict=True)
        shown = ", ".join(f"{second:g} s {plain:.3f} and {fast:.3f}" for second, plain, fast in pairs)
        console.print(f"adherence, plain and fast: {shown}", highlight=False)
        console.print(
            f"lost {found['lost_points']:.2f} points, drift {found['drift_points']:.2f}", highlight=False
        )
