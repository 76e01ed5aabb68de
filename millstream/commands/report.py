"""A measured result with all that is needed to judge it: hardware, versions, commit, configuration."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from millstream import __version__
from millstream.core.files import write_whole

ROOT = Path(__file__).parents[2]


def describe(name: str, configuration: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    return {
        "benchmark": name,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": current_commit(),
        "hardware": _hardware(),
        "versions": {"millstream": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        "configuration": configuration,
        "measured": measured,
    }


def make_folder(out: Path | None) -> None:
    """Where a result will be written, before hours are spent on it."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)


def tell(report: dict[str, Any], *, as_json: bool, out: Path | None, show: Callable[[], None]) -> None:
    """Print it, for programs or as `show` does for people, and write it down if so asked."""
    said = json.dumps(report, indent=2)
    if as_json:
        print(said)
    else:
        show()
    if out is not None:
        write_whole(out, said + "\n")


def current_commit() -> str:
    """With a plus sign where the tree has changes that are not in it; unknown where this is not our own repository."""
    if not (ROOT / ".git").exists():
        return "unknown"
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=True, cwd=ROOT
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
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def spelled(request: Any) -> dict[str, Any]:
    """A request for a report: the engine's fields beside its own."""
    fields = asdict(request)
    engine: dict[str, Any] = fields.pop("engine")
    return engine | fields
