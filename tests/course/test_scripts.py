"""Every script runs, holds what it claims, and says what its page says: some in `make test`, all in `make
course-test`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from course.catalogue import CHAPTERS
from course.chapter import Chapter
from course.checking import judge, skeleton_of, solution_of
from course.page import outputs_of
from course.reader import Reader
from course.running import run_script
from tests.course.page_rules import differences

SAMPLED = {
    "hello_distributed",
    "three_cures",
    "ring_all_reduce",
    "links",
    "kv_calculator",
    "launches",
    "gae_drawn",
}
SAMPLED |= {"fragmentation", "how_many_fit"}
CASES = [
    pytest.param(
        chapter, script, id=f"{chapter.key}-{script}", marks=[] if script in SAMPLED else [pytest.mark.course]
    )
    for chapter in CHAPTERS
    for script in chapter.scripts
]


@pytest.fixture(scope="module", autouse=True)
def _one_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All scripts find the language model that one of them has trained, in whichever process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLSTREAM_HOME", str(tmp_path_factory.getbasetemp().parent / "course"))
        yield


@pytest.mark.slow
@pytest.mark.parametrize(("chapter", "script"), CASES)
def test_a_script_holds_what_it_claims_and_says_what_its_page_says(chapter: Chapter, script: str) -> None:
    if script == "deepspeed_stages":
        pytest.importorskip("deepspeed", reason="DeepSpeed is an extra: pip install millstream[deepspeed]")
    reader = Reader(show=lambda line: None)
    run_script(chapter, script, reader)
    assert differences(outputs_of(chapter.page.read_text())[script], reader.lines) == []


@pytest.mark.slow
@pytest.mark.course
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_the_solution_passes_every_test_and_the_skeleton_none(chapter: Chapter) -> None:
    assert [verdict for verdict in judge(chapter, solution_of(chapter)) if verdict.problem] == []
    assert all(verdict.problem for verdict in judge(chapter, skeleton_of(chapter)))
