"""Injectors in files: `injectors.NAME.*` as safetensors, what they take in the header.

In a file of their own, `injectors.safetensors`, in a model's folder or by itself, or among the parts of a model
that is one file. The header's `conditions` says which injectors these are, so that a model of a known name
becomes one that can be steered by the files that it is given.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from millstream.core.config import ConditionsConfig, DiTConfig
from millstream.core.errors import MillstreamError, WeightsError
from millstream.core.files import Staging
from millstream.models.conditions.injectors import Injectors
from millstream.models.empty import empty_modules
from millstream.models.weights.fill import Filling
from millstream.models.weights.same_bytes import save_alike

FILE = "injectors.safetensors"
PREFIX = "injectors."
METADATA = "conditions"


def conditions_in(path: Path) -> ConditionsConfig | None:
    """Return what the injectors in a file take, or in a folder's file; None where there are none."""
    path = injector_file(path)
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(METADATA)
    except (OSError, SafetensorError):
        return None  # a damaged file is refused where its weights are read
    try:
        return None if text is None else msgspec.json.decode(text, type=ConditionsConfig)
    except (msgspec.MsgspecError, MillstreamError) as error:
        raise WeightsError(
            f"{path} does not say what it takes ({error}); write the injectors again"
        ) from None


def injector_file(path: Path) -> Path:
    """Return where a path's injectors would be: in it, if it is a folder."""
    return path / FILE if path.is_dir() else path


def is_injectors(path: Path) -> bool:
    """Return whether a file holds injectors and nothing else."""
    if path.is_dir() or conditions_in(path) is None:
        return False
    with safe_open(path, framework="pt") as file:
        return all(key.startswith(PREFIX) for key in file.keys())  # noqa: SIM118


def header_of(injectors: Injectors) -> dict[str, str]:
    """Return the header's entry; none of a model that takes words alone."""
    if injectors.is_empty:
        return {}
    return {METADATA: msgspec.json.encode(injectors.conditions).decode()}


def save_injectors(path: Path, injectors: Injectors, dtype: torch.dtype) -> None:
    """Write a file of injectors, which appears by rename."""
    tensors = {
        f"{PREFIX}{name}": weight.detach().to("cpu", dtype).contiguous()
        for name, weight in injectors.named_parameters()
    }
    with Staging(path.parent) as staging:
        save_alike(tensors, staging.path(path.name), header_of(injectors))


def empty_injectors(conditions: ConditionsConfig, dit: DiTConfig) -> Injectors:
    """Build a model's injectors on the meta device."""
    with empty_modules():
        return Injectors(conditions, dit)


def load_injectors(
    path: Path, injectors: Injectors, *, device: torch.device, dtype: torch.dtype
) -> Injectors:
    """Fill the injectors of a model from a file, which may hold other parts too, and return them."""
    filling = Filling(injectors, device=device, dtype=dtype)
    try:
        with safe_open(path, framework="pt") as file:
            stored = {key.removeprefix(PREFIX) for key in file.keys() if key.startswith(PREFIX)}  # noqa: SIM118
            wrong = sorted(stored ^ filling.shapes.keys()) or [
                name
                for name, shape in filling.shapes.items()
                if tuple(file.get_slice(PREFIX + name).get_shape()) != shape
            ]
            if wrong:
                raise WeightsError(
                    f"{path} does not fit this model's injectors: {', '.join(wrong[:3])}; they are of another "
                    "model"
                )
            for name in filling.shapes:
                filling.give(name, file.get_tensor(PREFIX + name))
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} cannot be read ({type(error).__name__}); write it again") from None
    filling.done()
    return injectors
