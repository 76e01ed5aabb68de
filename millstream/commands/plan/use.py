"""A plan handed on: what `plan --json` wrote, as settings that `serve --plan` starts with. Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from millstream.core.config import StreamConfig
from millstream.core.errors import ConfigError, MillstreamError
from millstream.core.presets import find_model
from millstream.core.topology import Topology
from millstream.planner.record import FORMAT, VERSION

MAX_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSettings:
    model: str
    topology: Topology
    precision: str
    """As `--precision` says it."""
    batch: int
    stream: StreamConfig
    """Stream of a session that does not ask for another."""
    replicas: int
    """Replicas that the plan counts on; one server is one of them."""


def settings_of(path: Path) -> PlannedSettings:
    """Read the settings of the best plan in the file. A plan that does not hold its promise, or cannot be
    served, is refused."""
    record = _read(path)
    try:
        ask = record["ask"]
        best = record["plans"][0]
        missing = [str(line) for line in best["missing"]]
        precision = str(ask["precision"])
        model = str(ask["model"])
        topology = Topology.parse(str(best["topology"]))
        batch = int(ask["batch"])
        replicas = int(best["replicas"])
        _check_served(ask)
        find_model(model)
        stream = msgspec.convert(ask["stream"], StreamConfig)
    except MillstreamError as error:
        raise ConfigError(f"the plan in {path} cannot be served: {error}") from None
    except (KeyError, IndexError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise ConfigError(
            f"{path} is not a whole plan (no {error}); write it again with millstream plan --json"
        ) from None
    if missing:
        raise ConfigError(
            f"the plan in {path} does not hold its promise: {missing[0]}; ask for less, or serve without "
            "--plan"
        )
    return PlannedSettings(
        model=model,
        topology=topology,
        precision="auto" if precision == "native" else precision,
        batch=batch,
        stream=stream,
        replicas=replicas,
    )


_SERVED = {
    "commit": True,
    "guidance": False,
    "whole_clip": False,
    "stream_batch": False,
    "vae": "full",
    "weights": "native",
}
_SERVED |= {"text": "device"}
"""What a server of this engine does without being told otherwise; what else can be planned is what others
run."""


def _check_served(ask: Mapping[str, Any]) -> None:
    other = [name for name, usual in _SERVED.items() if ask.get(name, usual) != usual]
    if other:
        raise ConfigError(
            f"it counts on {', '.join(f'{name} {ask[name]}' for name in other)}, which is planned for "
            "comparison only"
        )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError("too large")
        record = json.loads(path.read_text())
        if not isinstance(record, dict) or record.get("format") != FORMAT or record.get("version") != VERSION:
            raise ValueError("another format or version")
        return record
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; write a plan with millstream plan --json"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a plan ({error}); write one with millstream plan --json") from None
