"""A command's options in a file: `millstream serve --config serve.toml`. Loads no torch.

What may stand in it is what the command itself offers; there is no second list. The command line wins over
the environment, and that over the file. Tables are for what the command line has no words for: the command
says what is in them. Whatever is wrong is one line that names the file, the line and the field; the values
are not repeated, for some are secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from millstream.commands.usage import in_plain_words
from millstream.core.errors import ConfigError, MillstreamError
from millstream.core.toml_file import TomlFile, field_name


@dataclass(frozen=True, slots=True)
class InFile:
    """Type of an option in a file, in its annotation, where typer has another."""

    type: Any


@dataclass(slots=True)
class ConfigFile(TomlFile):
    fields: dict[str, str] = field(default_factory=dict)
    """How each option is spelled here, once they are settled."""

    def apply_defaults(
        self, context: typer.Context, annotations: Mapping[str, Any], tables: Iterable[str] = ()
    ) -> None:
        """Make what is said here the defaults of the command, whose annotations these are."""
        offered = {
            field_name(option.removeprefix("--")): each
            for each in context.command.params
            for option in each.opts
            if option.startswith("--") and not each.is_eager
        }
        defaults = {}
        for spelled, value in self.content.items():
            if spelled in tables:
                continue
            option = offered.get(field_name(spelled))
            if option is None and isinstance(value, dict):
                raise self.refusal((spelled,), "no such table; options stand above all tables")
            if option is None:
                raise self.unknown((spelled,), [*offered, *tables])
            assert option.name is not None
            if option.name in self.fields:
                raise self.refusal(
                    (spelled,), f"{self.fields[option.name]} says the same; leave one of them out"
                )
            self.check_type((spelled,), value, type_in_file(annotations[option.name]))
            if value == "" and kind_of(annotations[option.name]) is Path:
                raise self.refusal((spelled,), "it is empty, and names a file or folder")
            try:
                option.process_value(context, value)
            except typer.BadParameter as error:
                raise self.refusal((spelled,), in_plain_words(error.message)) from None
            self.fields[option.name] = spelled
            defaults[option.name] = value
        context.default_map = defaults

    @contextmanager
    def located(self, context: typer.Context) -> Iterator[None]:
        """Add the file and its line to errors that name an option which this file sets, or quote its
        value."""
        try:
            yield
        except MillstreamError as error:
            said_here = {
                name: spelled for name, spelled in self.fields.items() if _is_from_file(name, context)
            }
            named = [spelled for name, spelled in said_here.items() if _is_named(name, str(error))]
            quoted = [
                spelled for spelled in said_here.values() if _is_quoted(self.content[spelled], str(error))
            ]
            places = [self.place((spelled,)) for spelled in named or quoted]
            if not places:
                raise
            raise ConfigError(f"{self.path} {'; '.join(places)}: {error}") from None


def _is_from_file(name: str, context: typer.Context) -> bool:
    """Return whether an option's value comes from the file."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "DEFAULT_MAP"


def _is_named(name: str, message: str) -> bool:
    """Return whether an error is about an option: `--window`, `window 6 …`, `… with sink 9`."""
    return bool(re.search(rf"(--|^|\bwith ){name.replace('_', '[-_]')}(?![\w-])", message))


def _is_quoted(value: Any, message: str) -> bool:
    """Return whether an error quotes an option's value, or one of its values: `'cuda:99' is not here`,
    `none.pth is not there`."""
    texts = [
        each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str) and each
    ]
    return any(repr(each) in message or message.startswith(f"{each} ") for each in texts)


def type_in_file(annotation: Any) -> Any:
    """Return the type an option has in a file, where choices and paths are text."""
    about = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    for each in about:
        if isinstance(each, InFile):
            return each.type
    kind = kind_of(annotation)
    return str if isinstance(kind, type) and issubclass(kind, (Enum, Path)) else kind


def kind_of(annotation: Any) -> Any:
    """Strip an annotation of its notes and of None."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    (kind,) = (
        [each for each in get_args(annotation) if each is not type(None)]
        if _is_union(annotation)
        else [annotation]
    )
    return kind


def _is_union(annotation: Any) -> bool:
    return type(None) in get_args(annotation)
