"""What a recipe could have said instead: the reader of files names the wrong value or field, this the right ones."""

from __future__ import annotations

import difflib
import re

from msgspec import inspect


def with_choices(error: Exception, kind: type) -> str:
    """Its words, and where one of several values is wanted, which these are. `kind` is what was read."""
    found = re.match(r"(?:Invalid enum value|Object contains unknown field `(.*?)`).*?(?: - at `\$(.*)`)?$", str(error))
    if found is None:
        return str(error)
    wrong, place = found.groups()
    choices = _choices(inspect.type_info(kind), re.findall(r"\.([^.\[]+)", place or ""))
    near = difflib.get_close_matches(wrong or "", choices, n=1)
    return f"{error}; did you mean {near[0]}?" if near else f"{error}; known: {', '.join(choices)}" if choices else str(error)


def _choices(kind: inspect.Type, path: list[str]) -> list[str]:
    match kind:
        case inspect.LiteralType(values=values) if not path:
            return [str(value) for value in values]
        case inspect.StructType(fields=fields) if not path:
            return [field.encode_name for field in fields]
        case inspect.StructType(fields=fields):
            return next((_choices(field.type, path[1:]) for field in fields if field.encode_name == path[0]), [])
        case inspect.UnionType(types=types):
            return [choice for each in types for choice in _choices(each, path)]
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return _choices(item, path)
    return []
