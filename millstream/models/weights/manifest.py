"""`config.json` of a converted folder: which files hold which part of which model. Written last: it vouches
for them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from millstream.core.errors import WeightsError
from millstream.models.wan.layouts import Part

MANIFEST = "config.json"


class PartEntry(msgspec.Struct, frozen=True, kw_only=True):
    files: list[str]
    source: str
    """Name of what it was converted from, never a path."""
    layout: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal["millstream"] = "millstream"
    version: Literal[1] = 1
    model: str
    parts: dict[Part, PartEntry]

    def to_bytes(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def read_manifest(folder: Path) -> Manifest | None:
    """None where the folder is not a converted one: other layouts have a `config.json` too."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        raw = msgspec.json.decode(path.read_bytes())
        if not isinstance(raw, dict) or raw.get("format") != "millstream":
            return None
        manifest = msgspec.convert(raw, Manifest)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise WeightsError(f"{path} cannot be read ({error}); convert the model again") from error
    for name in (name for entry in manifest.parts.values() for name in entry.files):
        if Path(name).name != name or not (folder / name).is_file():
            raise WeightsError(f"{path} names {name}, which is not a file beside it; convert the model again")
    return manifest
