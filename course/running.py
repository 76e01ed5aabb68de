"""Runs a script of a chapter.

A script is a module with `run(reader, ...)`. What it takes besides has a default, and is what the command
line lets a reader play with: `world: int = 3` is `--world 3`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from course.chapter import Chapter
from course.reader import Reader
from millstream.core.errors import CourseError


def run_script(chapter: Chapter, script: str, reader: Reader, words: Sequence[str] = ()) -> None:
    chapter.check_script(script)
    function = importlib.import_module(chapter.module(script)).run
    function(reader, **_settings(function, script, words))


def settings_of(chapter: Chapter, script: str) -> dict[str, Any]:
    """Return the settings of a script and their defaults."""
    return _defaults(importlib.import_module(chapter.module(script)).run)


def _defaults(function: Callable[..., None]) -> dict[str, Any]:
    return {name: each.default for name, each in list(inspect.signature(function).parameters.items())[1:]}


def _settings(function: Callable[..., None], script: str, words: Sequence[str]) -> dict[str, Any]:
    defaults = _defaults(function)
    found = dict[str, Any]()
    for name, text in _pairs(words):
        if name not in defaults:
            known = ", ".join(f"--{each.replace('_', '-')}" for each in defaults) or "no options"
            raise CourseError(f"{script} has no option --{name.replace('_', '-')}; it has {known}")
        kind = type(defaults[name])
        try:
            found[name] = kind(text)
        except ValueError:
            raise CourseError(
                f"--{name.replace('_', '-')} of {script} is {kind.__name__}, got {text!r}"
            ) from None
    return found


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`--name value` or `--name=value`."""
    left = iter(words)
    for word in left:
        name, equals, text = word.partition("=")
        if not name.startswith("--"):
            raise CourseError(f"expected an option such as --world 3, got {word!r}")
        value = text if equals else next(left, None)
        if value is None:
            raise CourseError(f"{word} needs a value")
        yield name.removeprefix("--").replace("-", "_"), value
