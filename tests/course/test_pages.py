"""What the pages of the course promise is there: sections, code, pictures, outputs, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from course.catalogue import CHAPTERS, find_chapter
from course.chapter import FAILURES, LABS, Chapter
from course.formulas import as_html
from course.page import SLIDER, drawn, outputs_of, with_output
from course.reader import SaidLine
from course.running import settings_of
from course.site import broken_links, filled
from course.source import find_source
from millstream.core.errors import CourseError
from tests.course.page_rules import PICTURE, differences, references_of, sections_for, sections_of

EVERY = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
TAUGHT = [each for each in CHAPTERS if each.part not in (LABS, FAILURES)]
LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)]+)\)")


@EVERY
def test_a_page_has_the_fixed_sections_in_their_order_and_says_how_long_it_takes(chapter: Chapter) -> None:
    text = chapter.page.read_text()
    assert sections_of(text) == list(sections_for(chapter))
    assert text.startswith(f"# {chapter.heading}\n")
    assert f"Time: {chapter.minutes} minutes" in text


@EVERY
def test_a_page_shows_what_every_script_says_and_names_the_command_of_what_was_measured(
    chapter: Chapter,
) -> None:
    text = chapter.page.read_text()
    outputs = outputs_of(text)
    assert set(outputs) == set(chapter.scripts)
    assert all(outputs.values()), "python -m course.write_pages"
    named = re.findall(r"^\*Measured on .+, by `millstream course run ([\w-]+) (\w+)`\.", text, re.M)
    assert {key for key, _ in named} <= {chapter.key}
    assert {script for _, script in named} <= set(chapter.scripts)


@EVERY
def test_the_code_that_a_page_walks_through_is_there(chapter: Chapter) -> None:
    references = references_of(chapter.page.read_text())
    assert references
    for reference in references:
        assert find_source(reference).text


@EVERY
def test_pictures_are_what_their_code_draws_and_all_are_shown(chapter: Chapter) -> None:
    pictures = dict(drawn(chapter))
    for path, svg in pictures.items():
        assert path.read_text() == svg, f"python -m course.write_pages {chapter.key}"
    shown = {found["name"] for found in PICTURE.finditer(chapter.page.read_text())}
    assert (
        shown
        == {path.stem for path in pictures}
        == {path.stem for path in (chapter.folder / "pictures").iterdir()}
    )


@pytest.mark.parametrize("chapter", TAUGHT, ids=lambda chapter: chapter.name)
def test_a_chapter_has_something_to_predict_to_play_with_to_break_and_to_read(chapter: Chapter) -> None:
    text = chapter.page.read_text()
    assert "predict first: " in text
    assert SLIDER.search(text)
    assert any(len(settings_of(chapter, script)) for script in chapter.scripts), (
        "arguments on the command line"
    )
    broken = text.split("## Break it")[1].split("## Exercises")[0]
    assert "<!-- output" in broken
    assert re.search(r"\btool\b", broken), "what finds it"
    assert text.split("## Further reading")[1].count("look for") >= 2


def test_every_failure_has_a_symptom_a_tool_and_a_fix() -> None:
    text = find_chapter("failures").page.read_text().split("## The failures")[1].split("## Exercises")[0]
    failures = re.split(r"\n(?=\*\*[A-Z])", text)[1:]
    assert len(failures) == 10
    for each in failures:
        assert all(re.search(word, each, re.I) for word in ("symptom", "tool", "fix")), each[:40]


@EVERY
def test_links_lead_to_a_page_of_the_course_or_to_an_address(chapter: Chapter) -> None:
    for found in LINK.finditer(chapter.page.read_text()):
        target = found["target"]
        assert target.startswith("https://") or (chapter.folder / target).resolve().is_file(), target


@EVERY
def test_everything_that_stands_for_something_is_filled_in(chapter: Chapter) -> None:
    text = filled(chapter)
    assert "```source" not in text
    assert not SLIDER.search(text)
    assert "$" not in re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S), "every formula is written"
    assert text.count('??? note "Solution"') == 1


def test_a_page_that_speaks_of_something_that_is_gone_is_found_out() -> None:
    assert find_source("millstream.planner.hardware:NVLINK4").text.startswith("NVLINK4 = Link(")
    with pytest.raises(CourseError, match=r"there is no RankGroup\.gone"):
        find_source("millstream.parallel.collectives:RankGroup.gone")
    with pytest.raises(CourseError, match=r"there is no millstream\.nowhere"):
        find_source("millstream.nowhere:x")


def test_of_a_measured_line_only_the_numbers_may_differ() -> None:
    said = [SaidLine("the sum is 3", False), SaidLine("it took  12.5 ms", True)]
    assert differences(["the sum is 3", "it took 7 ms"], said) == []
    assert differences(["the sum is 4", "it took 7 ms"], said) == [
        "'the sum is 4' in the page, 'the sum is 3' said"
    ]
    assert len(differences(["the sum is 3", "that took 7 ms"], said)) == 1
    assert differences([], said) == ["0 lines in the page, 2 said"]
    written = [SaidLine("answer: “two red boats”, 3 ms", True)]
    assert differences(["answer: “one 7 blue duck”, 4 ms"], written) == []
    assert len(differences(["answered: “two red boats”, 3 ms"], written)) == 1


def test_an_output_takes_its_place_and_a_page_without_one_is_refused() -> None:
    page = "a\n<!-- output x begins -->\nold\n<!-- output x ends -->\nb\n"
    written = with_output(page, "x", [SaidLine("new 1", True)], "*by x*")
    assert outputs_of(written) == {"x": ["new 1"]}
    assert "*by x*" in written
    assert with_output(written, "x", [SaidLine("new 1", False)], "*by x*").count("*by x*") == 0
    with pytest.raises(CourseError, match="0 places for y"):
        with_output(page, "y", [], "")


def test_formulas_become_plain_html_outside_of_code() -> None:
    assert (
        as_html(r"takes $\alpha + \frac{b}{\beta}$")
        == 'takes <span class="formula">&alpha; +  b/&beta;</span>'
    )
    assert as_html("```\n$x$\n```") == "```\n$x$\n```"
    with pytest.raises(KeyError):
        as_html(r"$\unknown$")


def test_a_broken_link_and_what_comes_from_elsewhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<a href="gone.html">x</a><a href="https://x.org">x</a><script src="https://x.org/y.js">'
    )
    assert list(broken_links(tmp_path)) == ["index.html: gone.html", "index.html loads https://x.org/y.js"]
