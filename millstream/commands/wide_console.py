"""A console for tables."""

from __future__ import annotations

import os

from rich.console import Console

WIDTH = 200


def wide_console() -> Console:
    """A pipe or a file gets every figure; a terminal is as wide as it is."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=WIDTH)
