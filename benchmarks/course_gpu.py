"""Run course scripts on a GPU, and write their output into the pages of their chapters.

python -m benchmarks.course_gpu            where there is a GPU
python -m benchmarks.course_gpu --pages    write the result into the chapters
"""

from __future__ import annotations

import argparse

from benchmarks.pages import report_of, write_between
from benchmarks.report import write_report
from course.catalogue import find_chapter
from course.reader import Reader
from course.running import run_script

RESULT = "course_gpu"
SCRIPTS = ("10 cuda_graphs", "10 cuda_graphs --rows 64", "14 weight_update")


def said_by(script: str) -> list[str]:
    """The lines that only a GPU adds."""
    key, name, *words = script.split()
    reader = Reader()
    run_script(find_chapter(key), name, reader, words)
    return [line.text.strip("“”") for line in reader.lines if line.is_measured and line.text.startswith("“")]


def lines_of(key: str) -> list[str]:
    """Return the script output that a chapter's page shows."""
    said: dict[str, list[str]] = report_of(RESULT)["measured"]
    return [
        "```text",
        *(
            line
            for script, lines in said.items()
            if script.split()[0] == key
            for line in (f"$ millstream course run {script}", *lines)
        ),
        "```",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", action="store_true", help="only write what was found into the chapters")
    if not parser.parse_args().pages:
        write_report(RESULT, {"scripts": SCRIPTS}, {script: said_by(script) for script in SCRIPTS})
        return
    for key in sorted({script.split()[0] for script in SCRIPTS}):
        write_between(find_chapter(key).page, "benchmarks.course_gpu", lines_of(key))


if __name__ == "__main__":
    main()
