"""What the sentences of the course name is there: files, modules, commands and their options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

import millstream
from course.catalogue import CHAPTERS, find_chapter
from course.reading.catalogue import PAPERS
from course.running import settings_of
from millstream.commands.main import app

PACKAGE = Path(millstream.__file__).parent
PAGES = {page.name: page.page for page in (*CHAPTERS, *PAPERS)}
COMMANDS: Any = typer.main.get_command(app)
FILE = re.compile(r"(?<![\w/-])(?:\w+/)+\w+\.(?:py|md)\b")
OPTION = re.compile(r"--([a-z-]+)")


def code_in(text: str) -> list[str]:
    """Inline, one line each."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", prose)]


def missing(code: str) -> list[str]:
    """Of one piece of code, what it names and nobody finds."""
    gone = [
        path
        for path in FILE.findall(code)
        if not any((folder / path).is_file() for folder in (PACKAGE, PACKAGE.parent))
    ]
    words = code.split()
    if words[:2] == ["python", "-m"]:
        gone += (
            [words[2]]
            if not PACKAGE.parent.joinpath(*words[2].split(".")).with_suffix(".py").is_file()
            else []
        )
    elif words[0] == "millstream" and len(words) > 1:
        options = options_of(words[1:])
        gone += [name for name in OPTION.findall(code) if name not in options]
    return gone


def options_of(words: list[str]) -> set[str]:
    """That the command which is called takes, a script of the course its own."""
    command = COMMANDS
    named = list(words)
    while named and hasattr(command, "commands"):
        fallback = "recipe" if named[0].endswith(".toml") else named[0]
        assert fallback in command.commands or command.invoke_without_command, (
            f"there is no {' '.join(words)}"
        )
        if fallback not in command.commands:
            break
        command = command.commands[fallback]
        named = named if fallback == "recipe" else named[1:]
    options = {
        name.removeprefix("--") for each in command.params for name in (*each.opts, *each.secondary_opts)
    }
    if words[:2] == ["course", "run"] and len(named) > 1:
        options |= {name.replace("_", "-") for name in settings_of(find_chapter(named[0]), named[1])}
    return options


@pytest.mark.parametrize("name", PAGES)
def test_files_and_commands_that_a_page_names_are_there(name: str) -> None:
    assert {code: gone for code in code_in(PAGES[name].read_text()) if (gone := missing(code))} == {}


@pytest.mark.parametrize(
    ("code", "gone"),
    [
        ("parallel/gone.py", ["parallel/gone.py"]),
        ("parallel/tensor.py", []),
        ("python -m benchmarks.gone", ["benchmarks.gone"]),
        ("millstream plan --gpus 8xH200 --lightning", ["lightning"]),
        ("millstream train recipe.toml --deepspeed ds.json", []),
        ("millstream course run 2 deadlock --cure order --curse x", ["curse"]),
        ("millstream-course/lab_02.py", []),
    ],
)
def test_what_is_gone_is_found(code: str, gone: list[str]) -> None:
    assert missing(code) == gone
