"""How much of a chunk's time is spent in models: the DiT's calls and the VAE's decode, of everything a session does.

    python -m benchmarks.overhead

A 5M-parameter DiT on the CPU, the window full. The goal is at least 0.95; the rest is planning, noise, caches,
conversion to bytes, digests and the journal.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from benchmarks.report import write_report
from millstream import Engine
from millstream.core.trace import ChunkTiming
from millstream.session.journal import JournalWriter

MODEL_PHASES = ("step", "commit", "decode", "recompute", "text", "prompt")
WARM_UP, CHUNKS = 6, 30


def model_share(timing: ChunkTiming) -> float:
    return sum(timing.phases_ms.get(phase, 0.0) for phase in MODEL_PHASES) / timing.total_ms


def share_beside_the_vae(timing: ChunkTiming) -> float:
    """The stricter question: of a chunk's time without the VAE, how much is the DiT?"""
    calls = timing.phases_ms["step"] + timing.phases_ms["commit"]
    return calls / (timing.total_ms - timing.phases_ms["decode"])


def main() -> None:
    engine = Engine("wan-mini", weights="random", device="cpu")
    config = engine.stream_config()
    with tempfile.TemporaryDirectory() as folder:
        journal = JournalWriter(Path(folder) / "run.jsonl", engine.journal_header(config, "overhead"))
        session = engine.session("a kite over the sea", config=config, journal=journal, session_id="overhead")
        timings = [chunk.timing for chunk in session.stream(WARM_UP + CHUNKS)][WARM_UP:]
        journal.close()
    phases = {name: statistics.median(t.phases_ms.get(name, 0.0) for t in timings) for name in timings[0].phases_ms}
    write_report(
        "overhead",
        {"model": "wan-mini", "size": f"{config.height}x{config.width}", "steps": config.steps, "dtype": str(engine.dtype)},
        {
            "model_share": round(statistics.median(map(model_share, timings)), 4),
            "goal": 0.95,
            "dit_share_beside_the_vae": round(statistics.median(map(share_beside_the_vae, timings)), 4),
            "chunk_ms": round(statistics.median(t.total_ms for t in timings), 2),
            "outside_models_ms": round(statistics.median(t.total_ms * (1 - model_share(t)) for t in timings), 2),
            "phases_ms": {name: round(ms, 2) for name, ms in phases.items()},
        },
    )


if __name__ == "__main__":
    main()
