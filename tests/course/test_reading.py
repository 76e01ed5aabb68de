"""The reading map: every layer has papers, every paper a page with its sections, code, links and three
questions."""

from __future__ import annotations

import re

import pytest

from course.catalogue import CHAPTERS
from course.reading.catalogue import FOLDER, LAYERS, PAPERS, Paper
from course.reading.pages import paper_page, reading_for
from course.reading.questions import questions_of, reading_questions
from course.source import find_source
from tests.course.page_rules import PAPER_SECTIONS, references_of, sections_of

EVERY = pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
INNER = re.compile(r"\]\((?!https://)(?P<target>[^)#]+)")


def test_every_layer_has_papers_and_every_page_is_of_one() -> None:
    assert {paper.layer for paper in PAPERS} == set(LAYERS)
    assert {path.stem for path in FOLDER.iterdir()} == {paper.name for paper in PAPERS}
    assert {question.topic for question in reading_questions()} == {paper.name for paper in PAPERS}


@EVERY
def test_a_page_is_one_page_with_the_fixed_sections(paper: Paper) -> None:
    text = paper.page.read_text()
    assert sections_of(text) == list(PAPER_SECTIONS)
    assert 120 <= len(text.split()) <= 400


@EVERY
def test_the_code_that_a_page_names_is_there_and_shown(paper: Paper) -> None:
    references = references_of(paper.page.read_text())
    assert references
    shown = [find_source(reference).text.splitlines() for reference in references]
    assert all(lines[0] in paper_page(paper) for lines in shown)
    assert sum(map(len, shown)) <= 60, "a page, not a listing"


@EVERY
def test_links_lead_to_pages_of_the_site(paper: Paper) -> None:
    pages = (
        {f"{each.name}.md" for each in PAPERS}
        | {f"../{each.name}/page.md" for each in CHAPTERS}
        | {"index.md"}
    )
    prose = re.sub(r"^```.*?^```$", "", paper_page(paper), flags=re.M | re.S)
    assert paper.chapters
    assert {found["target"] for found in INNER.finditer(prose)} <= pages


@EVERY
def test_a_paper_asks_three_questions(paper: Paper) -> None:
    assert len(questions_of(paper)) == 3
    assert paper_page(paper).count("??? question") == 3


def test_published_figures_come_out() -> None:
    """What the papers say themselves: ZeRO's figure, Megatron's days and parameters, the share of scores."""
    answers = [question.answer for question in reading_questions() if question.topic == "zero"]
    assert answers == pytest.approx([31.4, 16.6, 1.9], rel=0.02)
    by_topic = {paper.name: questions_of(paper)[0].answer for paper in PAPERS}
    assert by_topic["megatron"] == pytest.approx(8.3, rel=0.01)
    assert by_topic["megatron_clusters"] == pytest.approx(34, rel=0.01)
    assert by_topic["sequence_parallel"] == pytest.approx(70, rel=0.01)
    assert by_topic["flash_attention_3"] == pytest.approx(75, rel=0.01)


def test_chapters_lead_to_the_map() -> None:
    assert "../reading/zero.md" in reading_for("data_parallel")
    assert reading_for("first_program") == ""
