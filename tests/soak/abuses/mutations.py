"""Errors to put into a message: in its values, its shape, its bytes. Pure functions, the same for the same
chance."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]
MAX_CHANGES = 3
DEPTH = 200
"""Depth of nesting in a value; bytes go deeper (`DEEP`)."""
HUGE = 20_000
"""Letters of a huge text: well past what any field may have, well below what a message may."""


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30,
    0.0, -0.0, 5e-324, 1e-308, 0.0004, 1e308, -1e308, float("nan"), float("inf"), float("-inf"),
    "", " ", "\0", "x", "\ud800", "\udfff\ud800", "\u202e", "e\u0301" * 50, "x" * HUGE, "\U0001f600" * 2000,
    "NaN", "1e999", "../../etc/passwd", "%s%n{0}", "-1x-1", "16x16", "1536x1536", "99999x99999", "0x0",
    [], {}, [[]], {"": {}}, _nested(DEPTH), [0] * 5000, {str(each): each for each in range(1000)},
)  # fmt: skip

DEEP = (
    b"[" * 50_000,
    b'{"a":' * 20_000,
    b"\x91" * 50_000,
    b"\x81\xa1a" * 20_000,
    b"\xdf\xff\xff\xff\xff",
    b"\xc1",
)
"""Bytes that a reader of JSON or MessagePack may recurse into, or whose stated length it may believe."""


def mutate(value: Any, chance: random.Random) -> Any:
    """Return the message with one to `MAX_CHANGES` errors in it; the given one is left unchanged."""
    for _ in range(chance.randint(1, MAX_CHANGES)):
        places = list(_places(value))
        path = chance.choice(places) if places else ()
        value = _changed(value, path, chance)
    return value


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with a few flipped, removed, inserted or repeated."""
    for _ in range(chance.randint(1, MAX_CHANGES)):
        at, until = sorted((chance.randint(0, len(data)), chance.randint(0, len(data))))
        match chance.randrange(7):
            case 0:
                data = data[:at] + chance.randbytes(chance.randint(1, 8)) + data[at:]
            case 1:
                data = data[:at] + data[until:]
            case 2:
                data = data[:until] + data[at:until] + data[until:]
            case 3:
                data = data[:at]
            case 4 if data:
                at = min(at, len(data) - 1)
                data = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
            case 5:
                data = (
                    data[:at]
                    + chance.choice((b"\xff\xfe", b"\xed\xa0\x80", b"\0", b"\r", b"\x80", b"\xf8\x88"))
                    + data[until:]
                )
            case _:
                data = data[:at] + chance.choice(DEEP) if chance.random() < 0.1 else data[::-1]
    return data


def said_twice(text: str, name: str, value: Any) -> str:
    """A JSON object with one of its names in it once more."""
    return (
        text.replace("{", "{" + json.dumps(name) + ":" + json.dumps(value) + ",", 1)
        if text.startswith("{")
        else text
    )


def _places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every field and item, however deep; of nested oddities only the outermost."""
    if len(path) > 6:
        return
    items: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(value, dict) and len(value) < 50:
        items = iter(value.items())
    elif isinstance(value, list) and len(value) < 50:
        items = iter(enumerate(value))
    for name, inner in items:
        yield (*path, name)
        yield from _places(inner, (*path, name))


def _changed(value: Any, path: Path, chance: random.Random) -> Any:
    if not path:
        return _other(value, chance) if chance.random() < 0.1 else _more(value, chance)
    name = path[0]
    rest = path[1:]
    inner: Any = dict(value) if isinstance(value, dict) else list(value)
    if rest or chance.random() < 0.7:
        inner[name] = _changed(inner[name], rest, chance) if rest else _other(inner[name], chance)
    elif chance.random() < 0.5:
        del inner[name]
    elif isinstance(inner, dict):
        inner[chance.choice((f"{name}s", str(name).upper(), f" {name}", "\ud800", ""))] = inner.pop(name)
    else:
        inner.insert(name, inner[name])
    return inner


def _other(value: Any, chance: random.Random) -> Any:
    """Something else in its place: odd, of another type, or nearly the same."""
    if chance.random() < 0.6:
        return chance.choice(ODD)
    match value:
        case bool():
            return chance.choice((int(value), str(value), [value]))
        case int() | float():
            return chance.choice(
                (-value, value + 1, value * 1000, value / 1000, str(value), [value], {"value": value})
            )
        case str():
            return chance.choice(
                (value[::-1], value * 3, value.upper(), [value], {"text": value}, len(value), value[:1])
            )
        case bytes():
            return mutate_bytes(value, chance)
        case _:
            return chance.choice(([value, value], {"value": value}, json.dumps(None), 7))


def _more(value: Any, chance: random.Random) -> Any:
    """A field that nobody asked for."""
    if isinstance(value, dict):
        return {
            **value,
            chance.choice(("extra", "type", "version", "", "__proto__", "id")): chance.choice(ODD),
        }
    return [value]
