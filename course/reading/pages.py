"""The reading map as pages of the site: the map itself, and one for each paper with its code and its
questions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from course.catalogue import CHAPTERS
from course.figures import without_marks
from course.page import SOURCE
from course.question import Question
from course.reading.catalogue import LAYERS, PAPERS, Paper
from course.reading.questions import questions_of
from course.source import as_code


def write_reading(folder: Path) -> list[dict[str, str]]:
    """Into a folder of the site; what its menu shows."""
    folder.mkdir()
    (folder / "index.md").write_text(_map(), encoding="utf-8")
    for paper in PAPERS:
        (folder / paper.page.name).write_text(paper_page(paper), encoding="utf-8")
    return [{"The map": "reading/index.md"}, *({each.title: f"reading/{each.page.name}"} for each in PAPERS)]


def paper_page(paper: Paper) -> str:
    titles = {each.name: each.title for each in CHAPTERS}
    chapters = ", ".join(f"[{titles[name]}](../{name}/page.md)" for name in paper.chapters)
    head = (
        f"# {paper.title}\n\n[{paper.url}]({paper.url}), {paper.year}. Layer: "
        f"[{paper.layer}](index.md#{paper.layer}). "
    )
    text = without_marks(paper.page.read_text(encoding="utf-8"))
    body = SOURCE.sub(lambda found: "\n\n".join(map(as_code, found["references"].splitlines())), text)
    questions = "\n".join(folded_questions(questions_of(paper)))
    return f"{head}In the course: {chapters}.\n\n{body}\n## Three questions\n\n{questions}"


def folded_questions(questions: Iterable[Question]) -> Iterator[str]:
    for question in questions:
        yield from (
            f'??? question "{question.text}"',
            "",
            f"    **{question.answer:.4g} {question.unit}**: {question.why}",
            "",
        )


def reading_for(chapter: str) -> str:
    """Return the links of a chapter's page to the reading map; empty if there are none."""
    links = [f"[{each.title}](../reading/{each.page.name})" for each in PAPERS if chapter in each.chapters]
    return f"\nIn the [reading map](../reading/index.md): {', '.join(links)}.\n" if links else ""


def _map() -> str:
    lines = [
        "# Reading map",
        "",
        "What others found out, by layer: a page for each paper or document in our own words, with the code",
    ]
    lines[-1] += (
        " of ours that does it and three questions whose answers are computed. `millstream course quiz` asks "
        "them too."
    )
    for layer, about in LAYERS.items():
        title, _, what = about.partition(": ")
        lines += ["", f"## {title} {{#{layer}}}", "", f"{what.capitalize()}.", ""]
        lines += [
            f"- [{each.title}]({each.page.name}), {each.year}" for each in PAPERS if each.layer == layer
        ]
    return "\n".join([*lines, ""])
