"""One event of a trace as its file says it: the fields that are used here, decoded at once by their types,
all others skipped.

Shapes stay as they are written: operators repeat them, so they are understood once (`costs.py`). An event
that is not written as it should be is mended, as far as it can be understood.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

_NOTHING = msgspec.Raw()


class Arguments(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    rename={
        "origin": "External id",
        "older_origin": "external id",
        "dims": "Input Dims",
        "types": "Input type",
        "concrete": "Concrete Inputs",
        "collective": "Collective name",
        "elements": "In msg nelems",
        "change": "Bytes",
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
        "address": "Addr",
        "device": "Device Id",
    },
):
    """Arguments of an event. A value may be of any type; the code that uses it checks."""

    correlation: Any = None
    origin: Any = None
    older_origin: Any = None
    """Name of `origin` in traces until 2021."""
    dims: msgspec.Raw = _NOTHING
    types: msgspec.Raw = _NOTHING
    concrete: msgspec.Raw = _NOTHING
    collective: Any = None
    elements: Any = None
    dtype: Any = None
    bytes: Any = None
    change: Any = None
    allocated: Any = None
    reserved: Any = None
    address: Any = None
    device: Any = None

    @property
    def has_shapes(self) -> bool:
        return self.dims is not _NOTHING


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = math.nan
    dur: float = 0.0
    args: Arguments = Arguments()

    def detached(self) -> TraceEvent:
        """Return a copy that can be kept: shapes refer to the whole text that they were read from."""
        args = self.args
        shapes = {name: getattr(args, name).copy() for name in _SHAPES if getattr(args, name) is not _NOTHING}
        return msgspec.structs.replace(self, args=msgspec.structs.replace(args, **shapes)) if shapes else self


EVENTS = msgspec.json.Decoder(list[TraceEvent])
_KEYS = {field.name: field.encode_name for field in msgspec.structs.fields(Arguments)}
_SHAPES = ("dims", "types", "concrete")


def mended(found: Mapping[str, Any]) -> TraceEvent:
    """Convert an event with fields of other types: what should be text becomes text; a time that is not a
    number becomes NaN."""
    args = found.get("args")
    phase = found.get("ph")
    return TraceEvent(
        ph=phase if isinstance(phase, str) else "",
        cat=str(found.get("cat", "")),
        name=str(found.get("name", "")),
        pid=_number_or_word(found.get("pid")),
        tid=_number_or_word(found.get("tid")),
        ts=_time(found.get("ts")),
        dur=_time(found.get("dur", 0.0)),
        args=_mended_arguments(args) if isinstance(args, dict) else Arguments(),
    )


def _mended_arguments(found: Mapping[str, Any]) -> Arguments:
    said = {name: found[key] for name, key in _KEYS.items() if key in found}
    return Arguments(
        **said | {name: msgspec.Raw(json.dumps(said[name]).encode()) for name in _SHAPES if name in said}
    )


def _number_or_word(value: Any) -> int | str | None:
    return value if value is None or type(value) in (int, str) else str(value)


def _time(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan
