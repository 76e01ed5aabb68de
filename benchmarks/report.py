"""Writes a benchmark's result with all that is needed to judge it: hardware, versions, commit, configuration."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from millstream import __version__

RESULTS = Path(__file__).parent / "results"


def write_report(name: str, configuration: dict[str, Any], measured: dict[str, Any]) -> Path:
    """`results/NAME.json`, printed as well."""
    report = {
        "benchmark": name,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "hardware": _hardware(),
        "versions": {"millstream": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        "configuration": configuration,
        "measured": measured,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(measured, indent=2))
    return path


def _commit() -> str:
    """With a plus sign where the tree has changes that are not in it."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=True, cwd=RESULTS.parent
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()


def _hardware() -> dict[str, Any]:
    found: dict[str, Any] = {"cpu": _cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
