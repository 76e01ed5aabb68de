"""Runs scripts and draws pictures again, and writes both into the pages.

    python -m millstream.course.write_pages [N [SCRIPT]]

For whoever writes the course. Lines that were measured are then of this machine.
"""

from __future__ import annotations

import sys

from millstream.course.catalogue import CHAPTERS, find_chapter
from millstream.course.page import write_output, write_pictures


def main(key: str | None = None, only: str | None = None) -> None:
    for chapter in CHAPTERS if key is None else (find_chapter(key),):
        write_pictures(chapter)
        for script in chapter.scripts if only is None else (only,):
            print(f"--- {chapter.key} {script}")
            write_output(chapter, script)


if __name__ == "__main__":
    words = sys.argv[1:]
    main(*words[:2])
