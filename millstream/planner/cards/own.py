"""A card that the catalogue does not have, from a small TOML file.

name = "MyCard"
memory_gib = 24
bf16_tflops = 100             # dense, sums in float32
bandwidth_tb_s = 0.8
architecture = "ada-consumer" # what its kernels reach; unknown if nothing is said
fp8_tflops = 200              # if it has fp8
multiprocessors = 76
link_gb_s = 10                # to another card
dollars_per_hour = 0.3
devices_per_node = 8
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from millstream.core.errors import DeviceError
from millstream.planner.cards.architectures import find_architecture
from millstream.planner.hardware import Device, Link

_NEEDED = ("name", "memory_gib", "bf16_tflops", "bandwidth_tb_s")
_OPTIONAL = (
    "architecture",
    "fp8_tflops",
    "multiprocessors",
    "link_gb_s",
    "dollars_per_hour",
    "devices_per_node",
)
_MAX_BYTES = 1 << 16


def read_card(path: Path) -> Device:
    said = _read(path)
    missing = [name for name in _NEEDED if name not in said]
    strange = [name for name in said if name not in (*_NEEDED, *_OPTIONAL)]
    if missing or strange:
        wrong = f"does not say {', '.join(missing)}" if missing else f"has no use for {', '.join(strange)}"
        raise DeviceError(
            f"{path} {wrong}; a card has {', '.join(_NEEDED)} and may have {', '.join(_OPTIONAL)}"
        )
    numbers = {name: value for name, value in said.items() if name not in ("name", "architecture")}
    for name, value in numbers.items():
        least = 0 if name == "dollars_per_hour" else 1e-6
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not (math.isfinite(value) and value >= least)
        ):
            raise DeviceError(f"{path}: {name} must be a number above 0, got {value!r}")
    architecture = find_architecture(str(said.get("architecture", "unknown"))).name
    return Device(
        name=str(said["name"]),
        architecture=architecture,
        memory_gib=float(said["memory_gib"]),
        bf16_tflops=float(said["bf16_tflops"]),
        fp8_tflops=float(said["fp8_tflops"]) if "fp8_tflops" in said else None,
        bandwidth_tb_s=float(said["bandwidth_tb_s"]),
        multiprocessors=int(said.get("multiprocessors", 100)),
        link=Link(name="its link", alpha_us=20.0, beta_gb_s=float(said.get("link_gb_s", 10.0))),
        dollars_per_hour=float(said.get("dollars_per_hour", 0.0)),
        devices_per_node=int(said.get("devices_per_node", 8)),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError("too large")
        found: dict[str, Any] = msgspec.toml.decode(path.read_bytes())
    except OSError as error:
        raise DeviceError(
            f"{path} cannot be read: {error.strerror}; --gpu-file names a TOML file of a card"
        ) from None
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        raise DeviceError(
            f"{path} is not a card ({error}); it should have lines such as memory_gib = 24"
        ) from None
    return found
