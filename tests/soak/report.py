"""Writes what a soak program found to `benchmarks/results`, with all that is needed to judge it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from millstream.commands import report

RESULTS = report.ROOT / report.RESULTS


def write_report(
    name: str, configuration: dict[str, Any], measured: dict[str, Any], *, shown: bool = True
) -> Path:
    """Write `NAME.json` and return its path. It is printed as well, unless it is written after each of many
    rows."""
    path = RESULTS / f"{name}.json"
    if shown:
        print(json.dumps(measured, indent=2))
    report.write_result(path, report.describe(name, configuration, measured))
    return path
