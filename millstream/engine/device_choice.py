"""From what people call devices and dtypes to those that are here, or one line that says which are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from millstream.core.config import ModelSpec
from millstream.core.errors import ConfigError, DeviceError
from millstream.engine.vae_place import refuse_split
from millstream.ops.precision import DTYPES, working_dtype


def choose_device(name: str, option: str = "--device") -> torch.device:
    """`auto` is the first GPU where there is one. `option` is where a person can name another."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"device {name!r} is not known; use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device {name!r} is not here: {torch.cuda.device_count()} GPUs found; use {option} cpu"
        )
    return device


def choose_vae_devices(names: Sequence[str], spec: ModelSpec) -> tuple[torch.device, ...]:
    """Return the named devices, if this VAE can use them."""
    devices = tuple(choose_device(name, "--vae-devices") for name in names)
    if len(devices) > 1:
        refuse_split(spec)
    return devices


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is what the device multiplies in hardware."""
    if name == "auto":
        return working_dtype(device)
    if name not in DTYPES:
        raise ConfigError(f"dtype must be auto, {' or '.join(DTYPES)}, got {name!r}")
    return DTYPES[name]
