"""One chapter, lab or other page of the course as data: what it is called and what is in it. Loads no torch
and no chapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millstream.core.errors import CourseError

FOLDER = Path(__file__).parent / "chapters"
LABS = 5
FAILURES = 6
VIDEO = 7
"""Parts that are not numbered; `_KEYS` has the names of their pages."""
_KEYS = {LABS: "lab-{:02}", FAILURES: "failures", VIDEO: "V{}"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Chapter:
    number: int
    part: int
    name: str
    """Name of its folder."""
    title: str
    minutes: int
    """Minutes that a reader takes to read, run and predict, without the exercises."""
    scripts: tuple[str, ...]
    """Scripts, in the order of the page."""
    borrowed: Mapping[str, str] = field(default_factory=dict)
    """Scripts that are another chapter's, and the folder of that."""
    optional: tuple[str, ...] = ()
    """Scripts that need a package which the course does not: left out where it is missing."""

    @property
    def key(self) -> str:
        """Name that a reader uses: 3, lab-02, V1."""
        return _KEYS.get(self.part, "{}").format(self.number)

    @property
    def heading(self) -> str:
        """Heading of its page; there is one failure lab, which needs no number."""
        return self.title if self.part == FAILURES else f"{self.key} {self.title}"

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def page(self) -> Path:
        return self.folder / "page.md"

    def module(self, name: str) -> str:
        return f"course.chapters.{self.borrowed.get(name, self.name)}.{name}"

    def check_script(self, script: str) -> None:
        if script not in self.scripts:
            raise CourseError(
                f"chapter {self.key} has no script {script!r}; it has {', '.join(self.scripts)}"
            )
