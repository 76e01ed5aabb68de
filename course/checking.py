"""Exercises: a skeleton that the reader fills in, tests that judge it, and a solution that passes them.

Every chapter has `exercise.py` (the skeleton), `solution.py` and `judge.py`, whose functions named
`judge_...` are given the reader's module. Some start ranks, in which the same file is loaded again. The
docstring of such a function is a hint.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from course.chapter import Chapter
from millstream.core.errors import CourseError, MillstreamError
from millstream.core.files import write_whole


class Verdict(NamedTuple):
    claim: str
    problem: str
    """Empty where the test passes."""
    hint: str
    """Empty where there is none."""


def skeleton_of(chapter: Chapter) -> Path:
    return chapter.folder / "exercise.py"


def solution_of(chapter: Chapter) -> Path:
    return chapter.folder / "solution.py"


def answers_name(chapter: Chapter) -> str:
    """Return the name of a reader's own file."""
    return (
        f"chapter_{chapter.number:02}.py"
        if chapter.key.isdigit()
        else f"{chapter.key.lower().replace('-', '_')}.py"
    )


def hand_out(chapter: Chapter, folder: Path) -> tuple[Path, bool]:
    """Return the path of the reader's own file, and whether it was made just now. An existing file is never
    touched."""
    path = folder / answers_name(chapter)
    if path.exists():
        return path, False
    write_whole(path, skeleton_of(chapter).read_text(encoding="utf-8"))
    return path, True


def load_answer(path: Path) -> ModuleType:
    """Load the reader's file as a module; on a rank as well as here."""
    spec = importlib.util.spec_from_file_location("course_answer", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise CourseError(f"{path} is not a Python file; millstream course check N makes one")
    module = importlib.util.module_from_spec(spec)
    sys.modules["course_answer"] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise CourseError(f"{path} does not load: {type(error).__name__}: {error}") from None
    return module


def judge(chapter: Chapter, path: Path) -> list[Verdict]:
    """Return the verdict of each test on the file at `path`."""
    answer = load_answer(path)
    return [Verdict(claim, _problem(test, answer), _hint(test)) for claim, test in _tests(chapter)]


def hints_of(chapter: Chapter) -> dict[str, str]:
    """Return the hint of each test, by its claim: the test's docstring, or empty if it has none."""
    return {claim: _hint(test) for claim, test in _tests(chapter)}


def _tests(chapter: Chapter) -> Iterator[tuple[str, Callable[[ModuleType], None]]]:
    for name, test in list(vars(importlib.import_module(chapter.module("judge"))).items()):
        if name.startswith("judge_"):
            yield name.removeprefix("judge_").replace("_", " "), test


def _hint(test: Callable[[ModuleType], None]) -> str:
    return inspect.cleandoc(test.__doc__ or "").replace("\n", " ")


def _problem(test: Callable[[ModuleType], None], answer: ModuleType) -> str:
    try:
        test(answer)
    except MillstreamError as error:
        return str(error)
    except Exception as error:  # the reader's code may do anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        return (
            f"{type(error).__name__}: {error or 'an assert does not hold'} "
            f"({Path(last.filename).name}:{last.lineno})"
        )
    return ""
