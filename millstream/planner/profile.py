"""A machine as `plan calibrate` measured it, in one small file that plans then use.

A plan takes it for `--gpus here`, and for a device of the catalogue that goes by the same name.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from millstream.core.errors import DeviceError
from millstream.core.seal import sealed
from millstream.planner.hardware import DEVICES, Device, Link, Rates
from millstream.planner.software import Software

FORMAT = "millstream-profile"
VERSION = 1
_MAX_BYTES = 1 << 20


def profile_text(device: Device, measured_on: dict[str, Any]) -> str:
    """A profile as it is written; `measured_on` is for people and for checks: date, commit, machine,
    versions."""
    assert device.measured is not None, f"{device.name} has no measured rates"
    record = {"format": FORMAT, "version": VERSION, "device": asdict(device), "measured_on": measured_on}
    return json.dumps(sealed(record), indent=2) + "\n"


def read_profile(path: Path) -> Device | None:
    """None where no profile was written."""
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError("too large")
        record = json.loads(path.read_text())
        if record.get("format") != FORMAT or record.get("version") != VERSION:
            raise ValueError("another format or version")
        return _device(record["device"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DeviceError(
            f"{path} is not a profile ({str(error) or type(error).__name__}); run millstream plan calibrate"
        ) from None


def _device(raw: dict[str, Any]) -> Device:
    by_width = {
        name: tuple((int(width), float(rate)) for width, rate in raw["measured"].get(name, ()))
        for name in ("conv_tflops", "deep_conv_tflops")
    }
    rates = {**raw["measured"], **by_width}
    known = {field.name for field in fields(Device)}
    same = DEVICES.get(str(raw.get("name", "")).lower())
    parts = {
        "architecture": raw.get("architecture", same.architecture if same is not None else "unknown"),
        "link": Link(**raw["link"]),
        "measured": Rates(**rates),
        "fitted": Software(**raw["fitted"]) if raw.get("fitted") is not None else None,
    }
    device = Device(**{**{k: v for k, v in raw.items() if k in known}, **parts})
    numbers = [
        device.memory_gib,
        device.rates.matmul_tflops,
        device.rates.bandwidth_tb_s,
        device.link.beta_gb_s,
    ]
    if not all(isinstance(number, float | int) and number > 0 for number in numbers):
        raise ValueError("rates must be above 0")
    return device
