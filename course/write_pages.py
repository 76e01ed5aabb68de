"""Runs scripts, draws pictures and computes figures again, and writes all of it into the pages.

    python -m course.write_pages [N [SCRIPT]]
    python -m course.write_pages figures         only the numbers within sentences, of every page

For whoever writes the course. Lines that were measured are then of this machine.
"""

from __future__ import annotations

import sys

from course.catalogue import CHAPTERS, find_chapter
from course.figures import write_figures
from course.page import write_output, write_pictures
from course.reading.catalogue import PAPERS


def main(key: str | None = None, only: str | None = None) -> None:
    for page in (*CHAPTERS, *PAPERS):
        write_figures(page.page)
    if key == "figures":
        return
    for chapter in CHAPTERS if key is None else (find_chapter(key),):
        write_pictures(chapter)
        for script in chapter.scripts if only is None else (only,):
            print(f"--- {chapter.key} {script}")
            write_output(chapter, script)


if __name__ == "__main__":
    words = sys.argv[1:]
    main(*words[:2])
