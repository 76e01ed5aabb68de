"""Writes a benchmark's result beside the benchmarks, with all that is needed to judge it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from millstream.commands.report import describe, write_result

RESULTS = Path(__file__).parent / "results"


def write_report(
    name: str, configuration: dict[str, Any], measured: dict[str, Any], *, shown: bool = True
) -> Path:
    """`results/NAME.json`, printed as well unless it is written after each of many rows."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    if shown:
        print(json.dumps(measured, indent=2))
    write_result(path, describe(name, configuration, measured))
    return path
