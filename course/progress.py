"""Progress of a reader, in one small file of their own. Written whole or not at all.

Of two commands at once, the one that ends last is kept: a lock would not be worth it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from course.chapter import Chapter
from course.reader import Graded
from millstream.core.errors import CourseError
from millstream.core.files import write_whole


@dataclass(kw_only=True, slots=True)
class Progress:
    ran: list[str] = field(default_factory=list)
    """Scripts, as `1/hello_distributed`."""
    predicted: dict[str, bool] = field(default_factory=dict)
    """The last prediction of each question, and whether it was right."""
    solved: list[str] = field(default_factory=list)
    """Keys of chapters whose exercises pass."""
    quiz: dict[str, bool] = field(default_factory=dict)

    def note_run(self, script: str, graded: Iterable[Graded]) -> None:
        if script not in self.ran:
            self.ran.append(script)
        self.predicted |= {f"{script}: {each.question}": each.is_right for each in graded}

    def note_solved(self, chapter: str) -> None:
        if chapter not in self.solved:
            self.solved.append(chapter)


def next_step(done: Progress, chapters: Iterable[Chapter]) -> str:
    """The command that leads on: a chapter's scripts in order, its exercises, the chapter after it, and at
    last the quiz."""
    for chapter in chapters:
        for script in chapter.scripts:
            if f"{chapter.key}/{script}" not in done.ran and script not in chapter.optional:
                return f"millstream course run {chapter.key} {script}"
        if chapter.key not in done.solved:
            return f"millstream course check {chapter.key}"
    return "millstream course quiz"


def progress_file() -> Path:
    """`$MILLSTREAM_HOME/course.json`, or `course.json` where the user's programs keep their state."""
    if home := os.environ.get("MILLSTREAM_HOME"):
        return Path(home) / "course.json"
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "millstream" / "course.json"


def load_progress(path: Path) -> Progress:
    try:
        found = Progress(**json.loads(path.read_text()))
        found.solved = [str(each) for each in found.solved]  # numbers, before there were labs
        return found
    except FileNotFoundError:
        return Progress()
    except (OSError, ValueError, TypeError) as error:
        raise CourseError(
            f"cannot read your progress in {path} ({error}); move it away to begin anew"
        ) from None


def save_progress(path: Path, progress: Progress) -> None:
    write_whole(path, json.dumps(asdict(progress), indent=2) + "\n")
