"""A TOML file whose mistakes are told by line: one line of text that names the file, the line and the field.

The values are not repeated, for some are secret. Fields may be spelled with - or _. What may stand in a file
its reader says.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from millstream.core.errors import ConfigError

F = TypeVar("F", bound="TomlFile")
T = TypeVar("T", bound=msgspec.Struct)
MAX_BYTES = 2**16
"""A file larger than that was not meant."""


@dataclass(slots=True)
class TomlFile:
    path: Path
    text: str
    content: dict[str, Any]

    @classmethod
    def read(cls: type[F], path: str, *, option: str = "", page: str) -> F:
        """`option` is what names it on the command line; `page` says what may stand in it."""
        called = f"{option} {path}".strip()
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_BYTES + 1)
            text = data.decode("utf-8-sig").replace("\r\n", "\n")
        except OSError as error:
            raise ConfigError(f"cannot read {called}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{called} is not text; give a TOML file") from None
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{called} has more than {MAX_BYTES} bytes; give a TOML file of options")
        try:
            return cls(Path(path), text, _parse(text))
        except msgspec.DecodeError as error:
            whole, _ = list(_whole_prefixes(text))[-1]
            raise ConfigError(
                f"{path} line {whole + 1}: {str(error).partition(' (at')[0]}; see {page}"
            ) from None

    def each_table(self, name: str, kind: type[T], take: Callable[[str, T], None]) -> None:
        """Hand over each `[name.NAME]`, a table of one kind, with its own name."""
        self.check_type((name,), self.content.get(name, {}), dict[str, dict[str, Any]])
        for own_name, table in self.content.get(name, {}).items():
            given = self.table((name, own_name), table, kind)
            try:
                take(own_name, given)
            except ConfigError as error:
                raise self.refusal((name, own_name), str(error)) from None

    def table(
        self, place: tuple[str, ...], table: dict[str, Any], kind: type[T], others: Iterable[str] = ()
    ) -> T:
        """A table, or the file's top, as what it is meant to be; `others` stand beside its fields and are
        read elsewhere."""
        types = {each.name: each.type for each in msgspec.structs.fields(kind)}
        given: dict[str, Any] = {}
        for spelled, value in table.items():
            path = (*place, spelled)
            name = field_name(spelled)
            if spelled in others:
                continue
            if name not in types:
                raise self.unknown(path, [*types, *others])
            if name in given:
                raise self.refusal(path, "is there twice; leave one of them out")
            self.check_type(path, value, types[name])
            given[name] = value
        missing = [
            each.name for each in msgspec.structs.fields(kind) if each.required and each.name not in given
        ]
        if missing:
            raise self.refusal(place, f"{missing[0].replace('_', '-')} is missing")
        return kind(**given)

    def refusal(self, path: tuple[str, ...], reason: str) -> ConfigError:
        return ConfigError(f"{self.path} {self.place(path)}: {reason}")

    def place(self, path: tuple[str, ...]) -> str:
        whole = 0
        for count, content in _whole_prefixes(self.text):
            if _holds(content, path):
                break
            whole = count
        return f"line {whole + 1}, {'.'.join(path)}"

    def unknown(self, path: tuple[str, ...], known: Iterable[str]) -> ConfigError:
        near = difflib.get_close_matches(field_name(path[-1]), known, n=1)
        return self.refusal(
            path, "no such field" + (f"; did you mean {near[0].replace('_', '-')}?" if near else "")
        )

    def check_type(self, path: tuple[str, ...], value: Any, type: Any) -> None:
        try:
            msgspec.convert(value, type)
        except msgspec.ValidationError as error:
            reason = str(error).partition(" - at ")[0].replace(" | null", "").replace("object", "table")
            raise self.refusal(path, reason[0].lower() + reason[1:]) from None


def _parse(text: str) -> dict[str, Any]:
    try:
        return msgspec.toml.decode(text, type=dict[str, Any])
    except RecursionError:
        raise msgspec.DecodeError("tables or lists are nested too deep") from None


def _whole_prefixes(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each number of lines from the start that is valid TOML by itself, with what those lines hold:
    what is new in one began after the one before.

    The parser keeps no lines; this asks it for them, once something is wrong.
    """
    lines = text.split("\n")
    for count in range(len(lines) + 1):
        try:
            yield count, _parse("\n".join(lines[:count]))
        except msgspec.DecodeError:
            continue


def _holds(content: Any, path: tuple[str, ...]) -> bool:
    for name in path:
        if not isinstance(content, dict) or name not in content:
            return False
        content = content[name]
    return True


def field_name(spelled: str) -> str:
    return spelled.replace("-", "_")
