"""Tensors with several words about them, in a file that is the same to the byte whenever they are:
safetensors writes those words in a new order each time, and people compare files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

LENGTH_BYTES = 8
"""Bytes before the header that hold its length."""


def save_alike(tensors: Mapping[str, Tensor], path: Path, about: Mapping[str, str]) -> None:
    save_file(dict(tensors), path, metadata=dict(about))
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        sorted_header = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length)
        assert len(sorted_header) == length, (
            f"the header of {path.name} changed its length when it was sorted"
        )
        file.seek(LENGTH_BYTES)
        file.write(sorted_header)
