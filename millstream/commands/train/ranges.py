"""`millstream train ranges`: what Brook's matmuls in 8 bits need to know, measured on its streams and kept
by its weights."""

from __future__ import annotations

from pathlib import Path

from millstream.commands.progress import counting_bar
from millstream.core.errors import ConfigError
from millstream.engine.engine import Engine
from millstream.models.brook.files import ranges_path
from millstream.models.brook.int8 import write_ranges
from millstream.train.evaluate.ranges import measure_ranges, range_ticks


def run_train_ranges(weights: str, *, count: int, device: str) -> Path:
    """The file that was written."""
    if count < 1:
        raise ConfigError(f"--count must be 1 or more, got {count}")
    if weights == "bundled":
        raise ConfigError("the bundled model comes with its ranges; name the file of yours: --weights FILE")
    engine = Engine("brook", weights=weights, device=device, dtype="float32")
    with counting_bar("ranges", range_ticks(count, engine.device)) as tick:
        ranges = measure_ranges(engine.model, count, config=engine.stream_config(), tick=tick)
    path = ranges_path(weights)
    write_ranges(path, ranges)
    return path
