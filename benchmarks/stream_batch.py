"""Distance of a stream batch from the exact stream, on a trained model: Brook's pictures with 1 to 3 chunks
under way. And how it fills a pipeline, on real ranks whose blocks only sleep: what calls cost each other,
nothing of how fast a model is.

    python -m benchmarks.stream_batch

Same prompts, seeds and noise; only when a chunk begins differs. `unrelated` compares exact streams of
different seeds: what two pictures of the same prompt have in common anyway. A depth of 1 is the exact stream
and must show no difference; so is one of 2 with two steps, where a chunk begins when the one before it has
only its commit left.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import write_report
from millstream.core.topology import Topology
from millstream.engine.engine import Engine
from millstream.engine.staggered import staggered_stream
from millstream.generation.generator import Generator
from millstream.generation.stopwatch import Stopwatch
from millstream.generation.stream_batch import StreamBatch
from millstream.mesh.config import MeshConfig
from millstream.mesh.launch import launcher
from millstream.mesh.rank import run_rank
from millstream.mesh.rendezvous import MeetingPoint
from millstream.models.dit import CausalDiT
from millstream.parallel.mesh_dit import MeshDiT
from millstream.session.chunk import PendingChunk

PROMPTS = (
    "a large red balloon drifting slowly over the hills at dusk in clear weather",
    "a yellow lantern over the sea at night",
)
SCHEDULES = {"two steps": (1000, 500), "four steps": (1000, 750, 500, 250)}
CHUNKS = 6
DEPTHS = (1, 2, 3)
PIPELINE = Topology.parse("front+pp2")
SLEEP_S = 0.05
SLEPT_CHUNKS = 18


def streamed(
    engine: Engine, prompt: str, steps: tuple[int, ...], seed: int = 1, depth: int = 1
) -> tuple[Tensor, Tensor]:
    """Latents [1, F, C, Y, X] and pictures [T, Y, X, 3] in 0 to 255 of a stream with `depth` chunks under
    way."""
    session = engine.session(prompt, seed=seed, steps=steps)
    batch = StreamBatch(engine.generator, depth=depth)
    pending = []
    deliveries = []
    for _ in range(CHUNKS):
        plan = session.decide()
        assert plan is not None, "nothing pauses this stream"
        pending.append(PendingChunk(session, plan))
        deliveries += batch.push(session.prepare(plan))
    deliveries += batch.flush()
    for chunk, delivery in zip(pending, deliveries, strict=True):
        session.receive(chunk, delivery)
    chunks = [session.finish(chunk) for chunk in pending]
    frames = torch.cat([torch.from_numpy(chunk.frames) for chunk in chunks]).float()
    return torch.cat(
        [delivery.latents_out for delivery in deliveries if delivery.latents_out is not None], dim=1
    ), frames


def compare(found: tuple[Tensor, Tensor], exact: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Latents that differ by so much of their length, pictures by so many decibels; infinite ones are said as
    999."""
    latents = float((found[0] - exact[0]).float().norm() / exact[0].float().norm())
    square = float((found[1] - exact[1]).square().mean())
    psnr = 999.0 if square == 0 else float(10 * torch.log10(torch.tensor(255.0**2 / square)))
    return {"latents_relative_error": latents, "psnr_db": psnr}


def means(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.mean(row[name] for row in rows), 4) for name in rows[0]}


def measure(engine: Engine, steps: tuple[int, ...]) -> dict[str, dict[str, float]]:
    exact = {prompt: streamed(engine, prompt, steps) for prompt in PROMPTS}
    found = {
        f"depth {depth}": means(
            [compare(streamed(engine, prompt, steps, depth=depth), exact[prompt]) for prompt in PROMPTS]
        )
        for depth in DEPTHS
    }
    return found | {
        "unrelated": means(
            [compare(streamed(engine, prompt, steps, seed=2), exact[prompt]) for prompt in PROMPTS]
        )
    }


def sleeping(dit: CausalDiT | MeshDiT) -> None:
    """Have every block of a model, or of a rank's share, take its time."""
    blocks = dit.dit.blocks if isinstance(dit, MeshDiT) else dit.blocks
    for block in blocks:
        block.register_forward_hook(lambda *_: time.sleep(SLEEP_S))


def sleeping_generator(dit: CausalDiT | MeshDiT, stopwatch: Stopwatch) -> Generator:
    sleeping(dit)
    return Generator(dit, stopwatch)


def run_sleeping_rank(config: MeshConfig, rank: int, meeting: MeetingPoint) -> None:
    run_rank(config, rank, meeting, make_generator=sleeping_generator)


def chunk_ms(engine: Engine, depth: int) -> float:
    """From one chunk to the next, once as many are under way as may be."""
    with engine.session("sea", height=32, width=48, window=9, steps=SCHEDULES["four steps"]) as session:
        shown_s = [
            time.perf_counter()
            for _ in staggered_stream(engine, session, depth=depth).stream(num_frames=12 * SLEPT_CHUNKS - 3)
        ]
    return round(1e3 * (shown_s[-depth] - shown_s[depth]) / (len(shown_s) - 2 * depth), 1)


def throughput() -> dict[str, dict[str, float]]:
    """Two blocks in one process, and on two stages. A stage that never waits sleeps 5 times a chunk: 4 steps
    and a commit."""
    place: dict[str, Any] = dict(weights="random:3", device="cpu", dtype="float32")
    found = {"a stage that never waits": {"any depth": 5e3 * SLEEP_S}}
    local = Engine("wan-tiny", **place)
    sleeping(local.generator.dit)
    found["local"] = {f"depth {depth}": chunk_ms(local, depth) for depth in DEPTHS}
    launch = partial(launcher, run=run_sleeping_rank)
    with Engine("wan-tiny", **place, topology=PIPELINE, launch=launch) as engine:
        found[str(PIPELINE)] = {f"depth {depth}": chunk_ms(engine, depth) for depth in DEPTHS}
    return found


def main() -> None:
    slept = {"simulated": True, "sleep_ms_a_block": 1e3 * SLEEP_S, "chunks": SLEPT_CHUNKS, "steps": 4}
    write_report("stream_batch_pipeline", slept, {"ms_a_chunk": throughput()})
    engine = Engine("brook", weights="bundled", device="cpu", dtype="float32")
    configuration = {
        "model": "brook",
        "dtype": "float32",
        "chunks": CHUNKS,
        "prompts": PROMPTS,
        "schedules": SCHEDULES,
    }
    write_report(
        "stream_batch", configuration, {name: measure(engine, steps) for name, steps in SCHEDULES.items()}
    )


if __name__ == "__main__":
    main()
