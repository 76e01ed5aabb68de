"""A command's options in a file: `millstream serve --config serve.toml`. Loads no torch.

What may stand in it is what the command itself offers; there is no second list. The command line wins over the environment, and
that over the file. Tables are for what the command line has no words for: the command says what is in them. Whatever is wrong
is one line that names the file, the line and the field; the values are not repeated, for some are secret.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
import typer

from millstream.core.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)
MAX_BYTES = 2**16
"""A file larger than that was not meant."""


@dataclass(frozen=True, slots=True)
class InFile:
    """What an option is in a file, in its annotation, where that is not what it is to typer."""

    type: Any


@dataclass(slots=True)
class ConfigFile:
    path: Path
    text: str
    content: dict[str, Any]
    fields: dict[str, str] = field(default_factory=dict)
    """How each option is spelled here, once they are settled."""

    @staticmethod
    def read(path: str) -> ConfigFile:
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_BYTES + 1)
            text = data.decode("utf-8-sig").replace("\r\n", "\n")
        except OSError as error:
            raise ConfigError(f"cannot read --config {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"--config {path} is not text; give a TOML file") from None
        if len(data) > MAX_BYTES:
            raise ConfigError(f"--config {path} has more than {MAX_BYTES} bytes; give a TOML file of options")
        try:
            return ConfigFile(Path(path), text, _parse(text))
        except msgspec.DecodeError as error:
            whole, _ = list(_whole_prefixes(text))[-1]
            raise ConfigError(f"{path} line {whole + 1}: {str(error).partition(' (at')[0]}; see docs/serving.md") from None

    def settle(self, context: typer.Context, annotations: Mapping[str, Any], tables: Iterable[str] = ()) -> None:
        """Make what is said here the defaults of the command, whose annotations these are."""
        offered = {
            _name(option.removeprefix("--")): each
            for each in context.command.params
            for option in each.opts
            if option.startswith("--") and not each.is_eager
        }
        defaults = {}
        for spelled, value in self.content.items():
            if spelled in tables:
                continue
            option = offered.get(_name(spelled))
            if option is None:
                raise self._unknown((spelled,), [*offered, *tables])
            assert option.name is not None
            if option.name in self.fields:
                raise self.refusal((spelled,), f"{self.fields[option.name]} says the same; leave one of them out")
            self._check_type((spelled,), value, _type_in_file(annotations[option.name]))
            try:
                option.process_value(context, value)
            except typer.BadParameter as error:
                raise self.refusal((spelled,), error.message.removeprefix("Value error, ")) from None
            self.fields[option.name], defaults[option.name] = spelled, value
        context.default_map = defaults

    def each_table(self, name: str, kind: type[T], take: Callable[[str, T], None]) -> None:
        """Hand over each `[name.NAME]`, a table of one kind, with its own name."""
        self._check_type((name,), self.content.get(name, {}), dict[str, dict[str, Any]])
        types = {each.name: each.type for each in msgspec.structs.fields(kind)}
        for own_name, table in self.content.get(name, {}).items():
            given: dict[str, Any] = {}
            for spelled, value in table.items():
                path = (name, own_name, spelled)
                if _name(spelled) not in types:
                    raise self._unknown(path, types)
                if _name(spelled) in given:
                    raise self.refusal(path, "is there twice; leave one of them out")
                self._check_type(path, value, types[_name(spelled)])
                given[_name(spelled)] = value
            try:
                take(own_name, kind(**given))
            except ConfigError as error:
                raise self.refusal((name, own_name), str(error)) from None

    def refusal(self, path: tuple[str, ...], reason: str) -> ConfigError:
        return ConfigError(f"{self.path} {self._place(path)}: {reason}")

    @contextmanager
    def located(self, context: typer.Context) -> Iterator[None]:
        """Where an error names options that are said here, say where."""
        try:
            yield
        except ConfigError as error:
            places = [self._place((spelled,)) for name, spelled in self.fields.items() if _is_named(name, str(error), context)]
            if not places:
                raise
            raise ConfigError(f"{self.path} {'; '.join(places)}: {error}") from None

    def _place(self, path: tuple[str, ...]) -> str:
        whole = 0
        for count, content in _whole_prefixes(self.text):
            if _holds(content, path):
                break
            whole = count
        return f"line {whole + 1}, {'.'.join(path)}"

    def _unknown(self, path: tuple[str, ...], known: Iterable[str]) -> ConfigError:
        near = difflib.get_close_matches(_name(path[-1]), known, n=1)
        return self.refusal(path, "no such field" + (f"; did you mean {near[0].replace('_', '-')}?" if near else ""))

    def _check_type(self, path: tuple[str, ...], value: Any, type: Any) -> None:
        try:
            msgspec.convert(value, type)
        except msgspec.ValidationError as error:
            reason = str(error).partition(" - at ")[0].replace(" | null", "").replace("object", "table")
            raise self.refusal(path, reason[0].lower() + reason[1:]) from None


def _parse(text: str) -> dict[str, Any]:
    return msgspec.toml.decode(text, type=dict[str, Any])


def _whole_prefixes(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """How many lines from the start are TOML by themselves, and what they say: what is new in one began after the one before.

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


def _is_named(name: str, message: str, context: typer.Context) -> bool:
    """Whether an error is about an option that the file has the say on."""
    source = context.get_parameter_source(name)
    spelled = name.replace("_", "[-_]")
    return source is not None and source.name == "DEFAULT_MAP" and bool(re.search(rf"(--|^){spelled}(?![\w-])", message))


def _type_in_file(annotation: Any) -> Any:
    """Choices and paths are text there."""
    if get_origin(annotation) is Annotated:
        annotation, *about = get_args(annotation)
        for each in about:
            if isinstance(each, InFile):
                return each.type
    (kind,) = [each for each in get_args(annotation) if each is not type(None)] if _is_union(annotation) else [annotation]
    return str if isinstance(kind, type) and issubclass(kind, (Enum, Path)) else kind


def _is_union(annotation: Any) -> bool:
    return type(None) in get_args(annotation)


def _name(spelled: str) -> str:
    return spelled.replace("-", "_")
