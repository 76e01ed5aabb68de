"""The tables of docs/protocol.md, from the types that server and client read and write messages with.

python -m benchmarks.protocol_page

A field's meaning is the docstring below it. One without is as in the message where it was explained:
`EXPLAINED`.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import get_args

import msgspec
from msgspec import inspect as types

from benchmarks.pages import row, write_tables
from millstream.core.client_messages import AnyClientMessage, Attach, Start
from millstream.core.config import StreamConfig
from millstream.core.controls import AnyControl
from millstream.core.server_messages import Forked, Header, Told
from millstream.server.access.limits import ClientLimits

PAGE = Path(__file__).parents[1] / "docs" / "protocol.md"
EXPLAINED = (Start, Attach, Forked)
WORDS = {
    types.StrType: "string", types.IntType: "integer", types.FloatType: "number", types.BoolType: "boolean",
    types.BytesType: "string", types.NoneType: "null", types.AnyType: "any", types.DictType: "object",
    types.StructType: "object",
}  # fmt: skip


def client() -> Iterator[str]:
    yield from _table(get_args(AnyClientMessage), defaults=True)


def controls() -> Iterator[str]:
    yield from _table(get_args(AnyControl), defaults=True)


def server() -> Iterator[str]:
    yield from _table(get_args(Told))


def headers() -> Iterator[str]:
    yield from _table(get_args(Header))


def config() -> Iterator[str]:
    yield row(["field of `config`", "type", "means"])
    yield "|---|---|---|"
    for name, kind, _, meaning in _fields(StreamConfig):
        yield row([f"`{name}`", kind, meaning])


def limits() -> Iterator[str]:
    yield row(["field of `limits`", "is", "means"])
    yield "|---|---|---|"
    for name, _, default, meaning in _fields(ClientLimits):
        yield row([f"`{name}`", default, meaning])


TABLES = {
    f"benchmarks.protocol_page: {table.__name__}": table
    for table in (client, controls, server, headers, config, limits)
}


def _table(messages: Iterable[type], *, defaults: bool = False) -> Iterator[str]:
    """Yield a table of messages: the purpose of each, then its fields, each explained once. A server always
    sends all fields, so none of its fields has a default."""
    heads = ["message", "field", "type", *(["without it"] if defaults else []), "means"]
    yield row(heads)
    yield "|---" * len(heads) + "|"
    known: dict[tuple[str, str], str] = {}
    for message in messages:
        tag = message.__struct_config__.tag  # type: ignore[attr-defined]
        meaning = _meaning(message)
        yield row([f"**`{tag}`**", *[""] * (len(heads) - 2), meaning])
        for name, kind, default, means in _fields(message):
            first = known.setdefault((name, means), tag)
            yield row(
                [
                    "",
                    f"`{name}`",
                    kind,
                    *([default] if defaults else []),
                    means if first == tag else f"as in `{first}`",
                ]
            )


def _fields(kind: type, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """The name of each field, its type, what it is where it is not said, and what it means; those within it
    follow it."""
    described = types.type_info(kind)
    assert isinstance(described, (types.StructType, types.DataclassType)), described
    for field in described.fields:
        default = "needed" if field.required else _default(field)
        yield prefix + field.encode_name, _words(field.type), default, _field_meaning(kind, field.name)
        for inner in _within(field.type):
            mark = "[]" if isinstance(field.type, types.VarTupleType) else ""
            yield from _fields(inner.cls, f"{prefix}{field.encode_name}{mark}.")


def _default(field: types.Field) -> str:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    said = f"{value:g}" if isinstance(value, float) else msgspec.json.encode(value).decode()
    return said if said[-1:].isdigit() else f"`{said}`"


def _within(kind: types.Type) -> list[types.StructType]:
    """Return the types within a field that have fields; messages and controls are explained elsewhere."""
    held = kind.item_type if isinstance(kind, types.VarTupleType) else kind
    return [held] if isinstance(held, types.StructType) and held.tag is None else []


def _words(kind: types.Type) -> str:
    match kind:
        case types.UnionType(types=several):
            structs = [each for each in several if isinstance(each, types.StructType)]
            others = [_words(each) for each in several if each not in structs]
            return " or ".join([*(["object"] if structs else []), *others])
        case types.LiteralType(values=values):
            return " or ".join(json.dumps(value) for value in values)
        case types.VarTupleType(item_type=item):
            inner = _words(item)
            inner = inner.replace("list of", "lists of", 1)
            return f"list of {inner}s" if inner in WORDS.values() else f"list of {inner}"
        case types.TupleType(item_types=items):
            return f"list of {len(items)} {_words(items[0])}s"
        case types.IntType() | types.FloatType():
            return WORDS[type(kind)] + _range(kind)
    return WORDS[type(kind)]


def _range(kind: types.IntType | types.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" ({kind.ge:,} to {'2^53' if kind.le == 2**53 else f'{kind.le:,}'})"
    return f" (above {kind.gt:g}, at most {kind.le:g})" if kind.gt is not None and kind.le is not None else ""


def _field_meaning(kind: type, name: str) -> str:
    own = _docstrings(kind).get(name)
    if own is not None:
        return _linked(own)
    explained = [message.__struct_config__.tag for message in EXPLAINED if name in _docstrings(message)]
    assert explained, f"{kind.__name__}.{name} says nowhere what it means"
    return f"as in `{explained[0]}`"


def _meaning(kind: type) -> str:
    """Its own docstring, or that of the base it has its fields from."""
    for base in kind.__mro__:
        said = ast.get_docstring(_parsed(base)) if base.__module__.startswith("millstream") else None
        if said is not None:
            assert not said.startswith("Base of"), f"{kind.__name__} does not say what it is for"
            return _linked(said)
    raise AssertionError(f"{kind.__name__} does not say what it is for")


def _linked(text: str) -> str:
    """On one line, pages as links."""
    line = re.sub(r"docs/protocol\.md(#[\w-]+)", r"[below](\1)", " ".join(text.split()))
    return re.sub(r"docs/(\w+\.md)(#[\w-]+)?", r"[\1](\1\2)", line)


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """Return the field note below each field, including those of the bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("millstream"):
            continue
        body = _parsed(base).body
        for field, said in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match said:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        found[field.target.id] = text
    return found


def _parsed(kind: type) -> ast.ClassDef:
    return next(
        node
        for node in _module(kind.__module__)
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )


@cache
def _module(name: str) -> list[ast.stmt]:
    return ast.parse(Path(str(sys.modules[name].__file__)).read_text()).body


if __name__ == "__main__":
    write_tables(PAGE, TABLES)
