"""A chapter's page: what scripts and pictures leave in it.

`<!-- output NAME begins -->` and `ends` enclose what a script said. Lines that are the same everywhere must
be so in the page; of measured ones only the numbers may differ and what stands in “ ”, which a model wrote;
the page names machine and command under them. A fence named `source` holds references to the product's own
code, `<!-- slider NAME -->` stands for something to play with on the site. Numbers within sentences are those
of `figures.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from course.chapter import Chapter
from course.reader import Reader, SaidLine
from course.running import run_script
from millstream.core.errors import CourseError

SOURCE = re.compile(r"^```source\n(?P<references>.*?)\n```$", re.M | re.S)
SLIDER = re.compile(r"^<!-- slider (?P<name>\w+) -->$", re.M)
_OUTPUT = re.compile(
    r"<!-- output (?P<name>\w+) begins -->\n(?P<body>.*?)<!-- output (?P=name) ends -->", re.S
)


def outputs_of(text: str) -> dict[str, list[str]]:
    """Return the output of each script as shown in the page."""
    return {found["name"]: _fenced(found["body"]) for found in _OUTPUT.finditer(text)}


def _fenced(body: str) -> list[str]:
    inside = re.search(r"```text\n(.*?)\n?```", body, re.S)
    return inside[1].splitlines() if inside else []


def with_output(text: str, script: str, lines: Sequence[SaidLine], caption: str) -> str:
    """Return the page with a script's output put in its place."""
    measured = any(line.is_measured for line in lines)
    body = "\n".join(["```text", *(line.text for line in lines), "```", *(["", caption] if measured else [])])
    marks = f"<!-- output {script} begins -->", f"<!-- output {script} ends -->"
    found = [each for each in _OUTPUT.finditer(text) if each["name"] == script]
    if len(found) != 1:
        raise CourseError(f"the page has {len(found)} places for {script}, between {marks[0]} and {marks[1]}")
    return text[: found[0].start()] + f"{marks[0]}\n{body}\n{marks[1]}" + text[found[0].end() :]


def write_output(chapter: Chapter, script: str) -> None:
    """Run a script and write its output into the page."""
    from millstream.commands.machine import hardware

    reader = Reader()
    run_script(chapter, script, reader)
    found = hardware()
    busy = f", load {os.getloadavg()[0]:.0f} at its end" if hasattr(os, "getloadavg") else ""
    machine = f"{found['cpu']}, {found['cores']} cores{busy}"
    caption = (
        f"*Measured on {machine}, by `millstream course run {chapter.key} {script}`. Yours will differ.*"
    )
    chapter.page.write_text(
        with_output(chapter.page.read_text(encoding="utf-8"), script, reader.lines, caption), encoding="utf-8"
    )


def drawn(chapter: Chapter) -> Iterator[tuple[Path, str]]:
    """Every picture of a chapter as its code draws it, and where it lies."""
    for name, draw in import_module(chapter.module("pictures")).PICTURES.items():
        yield chapter.folder / "pictures" / f"{name}.svg", draw()


def write_pictures(chapter: Chapter) -> None:
    for path, svg in drawn(chapter):
        path.parent.mkdir(exist_ok=True)
        path.write_text(svg, encoding="utf-8")
