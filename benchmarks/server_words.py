"""How a benchmark's own options name the server that it starts."""

from __future__ import annotations

import argparse

NAMES = ("model", "weights", "size", "window", "fast", "precision", "device")


def add_server_options(parser: argparse.ArgumentParser) -> None:
    for name in NAMES:
        parser.add_argument(f"--{name}", default="brook" if name == "model" else None)


def asked(options: argparse.Namespace) -> dict[str, str | None]:
    return {name: getattr(options, name) for name in NAMES}


def server_words(options: argparse.Namespace) -> list[str]:
    """For `millstream serve` and `millstream bench stream` alike."""
    return [word for name, value in asked(options).items() if value is not None for word in (f"--{name}", value)]
