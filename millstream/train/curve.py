"""Curve of a run: one JSON object a line, step by step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.core.files import write_whole


def cut_curve(path: Path, stays: Callable[[int], bool]) -> list[dict[str, Any]]:
    """Keep the lines of these steps in the file: a run that was killed makes those after its checkpoint
    again. Return the kept lines."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]  # the last one may be cut short
    kept = [line for line in whole if stays(json.loads(line)["step"])]
    if kept != lines:
        write_whole(path, "".join(kept))
    return [json.loads(line) for line in kept]
