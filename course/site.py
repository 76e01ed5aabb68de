"""The course as a static site: `python -m course.site out/course`. Needs the extra `course`, and no network.

Pages are those of the chapters. What stands for something is filled in: references to code by the code as it
is, sliders by the planner's values, formulas by plain HTML, since a page that works offline loads no
typesetter.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from course.catalogue import CHAPTERS, PARTS, heading
from course.chapter import Chapter
from course.checking import hints_of, skeleton_of, solution_of
from course.figures import without_marks
from course.formulas import as_html
from course.page import SLIDER, SOURCE
from course.questions import all_questions
from course.reading.pages import folded_questions, reading_for, write_reading
from course.sliders import find_slider
from course.source import as_code
from millstream.core.errors import CourseError

WEB = Path(__file__).parent / "web"


def build_site(out: Path) -> None:
    """In the place of what was there."""
    with tempfile.TemporaryDirectory() as folder:
        write_sources(Path(folder))
        run_mkdocs(Path(folder), out)


def run_mkdocs(sources: Path, out: Path) -> None:
    """Build a site from a folder with an mkdocs.yml; refuse one with links that lead nowhere."""
    if importlib.util.find_spec("material") is None:
        raise CourseError('the site needs MkDocs Material: pip install "millstream[course]"')
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--clean"]
    places = ["--config-file", f"{sources}/mkdocs.yml", "--site-dir", str(out.absolute())]
    done = subprocess.run([*command, *places], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CourseError(f"the site was not built: {(done.stderr or done.stdout).strip()}")
    broken = list(broken_links(out))
    if broken:
        raise CourseError(f"links that lead nowhere: {'; '.join(broken)}")


def write_sources(folder: Path) -> None:
    """Write the sources that MkDocs builds the site from."""
    docs = folder / "docs"
    shutil.copytree(WEB, docs / "web")
    for chapter in CHAPTERS:
        shutil.copytree(chapter.folder / "pictures", docs / chapter.name / "pictures")
        (docs / chapter.name / "page.md").write_text(
            filled(chapter) + reading_for(chapter.name), encoding="utf-8"
        )
    (docs / "index.md").write_text(_index(), encoding="utf-8")
    (docs / "quiz.md").write_text(_quiz(), encoding="utf-8")
    reading = write_reading(docs / "reading")
    nav = [{"Begin": "index.md"}]
    for part in PARTS:
        pages = [{each.heading: f"{each.name}/page.md"} for each in CHAPTERS if each.part == part]
        nav.append({heading(part): pages})  # type: ignore[dict-item]
    settings = {
        "site_name": "Millstream: the course",
        "docs_dir": "docs",
        "use_directory_urls": False,
        "theme": {
            "name": "material",
            "font": False,
            "features": ["navigation.sections", "navigation.footer", "content.code.copy"],
        },
        "plugins": ["search"],  # not `offline`: its search loads a script from elsewhere
        "markdown_extensions": [
            "attr_list",
            "md_in_html",
            "pymdownx.highlight",
            "pymdownx.superfences",
            "pymdownx.details",
        ],
        "extra_css": ["web/course.css"],
        "extra_javascript": ["web/course.js"],
        "nav": [*nav, {"Reading map": reading}, {"Quiz": "quiz.md"}],
        "validation": {"links": {"anchors": "warn"}},
    }
    (folder / "mkdocs.yml").write_text(json.dumps(settings), encoding="utf-8")  # which is YAML too


def filled(chapter: Chapter) -> str:
    """A chapter's page with everything in its place."""
    text = SOURCE.sub(
        lambda found: "\n\n".join(map(as_code, found["references"].splitlines())),
        chapter.page.read_text(encoding="utf-8"),
    )
    text = SLIDER.sub(lambda found: find_slider(found["name"]).html(), as_html(without_marks(text)))
    hints = [f'??? tip "Hint: {claim}"\n\n    {hint}\n' for claim, hint in hints_of(chapter).items() if hint]
    exercises = [_folded("Exercise", skeleton_of(chapter)), *hints, _folded("Solution", solution_of(chapter))]
    return text.replace("\n## On a GPU", "\n" + "\n".join(exercises) + "\n## On a GPU")


def _folded(title: str, path: Path) -> str:
    inside = "".join(
        f"    {line}\n" if line else "\n"
        for line in ["```python", *path.read_text(encoding="utf-8").splitlines(), "```"]
    )
    return f'??? note "{title}"\n\n{inside}'


def _index() -> str:
    lines = [
        "# The course",
        "",
        "From PyTorch on one device to models that are spread over many. Every script runs on a laptop",
        "",
    ]
    lines[2] += (
        " without a GPU, every number in these pages was printed by a script or computed by the planner."
    )
    lines += [
        "```text",
        "pip install -e .         # in a checkout, which has the course; the installed package alone has not",
        "millstream course        # what there is, how far you are, and what is next",
        "millstream course run 1",
        "```",
        "",
        "Numbers of GPUs were measured on one H200 or computed by the planner, as the page says; those of "
        "papers are theirs.",
        "",
    ]
    for part in PARTS:
        lines += [f"## {heading(part)}", ""]
        chapters = (each for each in CHAPTERS if each.part == part)
        lines += [f"- [{each.heading}]({each.name}/page.md), {each.minutes} minutes" for each in chapters]
        lines.append("")
    return "\n".join(
        [
            *lines,
            "[The reading map](reading/index.md) has a page for each paper that matters.",
            "",
            _ASKED,
            "",
        ]
    )


_ASKED = "[The quiz](quiz.md) asks what this part taught; `millstream course quiz` grades it."


def _quiz() -> str:
    lines = [
        "# Quiz",
        "",
        "Every answer is computed by the planner. `millstream course quiz` asks and grades.",
        "",
    ]
    return "\n".join([*lines, *folded_questions(all_questions())])


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("href", "src") and value]


def broken_links(folder: Path) -> Iterator[str]:
    """Links between files of a built site that lead nowhere, and whatever a page would load from
    elsewhere."""
    for page in sorted(folder.rglob("*.html")):
        links = _Links()
        text = page.read_text(encoding="utf-8")
        links.feed(text)
        for link in links.found:
            target = re.sub(r"[?#].*", "", link)
            outside = re.match(r"[a-z]+:", link)
            if target and not outside and not (page.parent / target).exists() and page.name != "404.html":
                yield f"{page.relative_to(folder)}: {link}"
        for loaded in re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', text):
            yield f"{page.relative_to(folder)} loads {loaded}"


if __name__ == "__main__":
    try:
        build_site(Path(sys.argv[1]))
    except CourseError as error:
        sys.exit(f"error: {error}")
    print(Path(sys.argv[1]) / "index.html")
