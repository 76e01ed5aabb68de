"""What surrounds the chapters: predictions, progress, options of scripts, exercises, the quiz, the command
line."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from course.catalogue import CHAPTERS, PARTS, find_chapter
from course.checking import hand_out, hints_of, judge, load_answer, skeleton_of, solution_of
from course.progress import Progress, load_progress, next_step, progress_file, save_progress
from course.questions import all_questions
from course.quiz import choose, play
from course.reader import Graded, Reader, number_in
from course.running import run_script
from course.sliders import SLIDERS, find_slider
from course.tracks import TRACKS
from millstream.commands.main import app
from millstream.core.errors import CourseError


@pytest.fixture(autouse=True)
def _own_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))


def silent(*predictions: float) -> Reader:
    return Reader(predictions, show=lambda line: None)


@given(st.floats(0.1, 1e6), st.floats(0.01, 0.5), st.floats(-2, 2))
def test_a_prediction_is_right_within_its_tolerance_and_nowhere_else(
    answer: float, tolerance: float, off: float
) -> None:
    if math.isclose(abs(off), 1, rel_tol=1e-3):
        return
    reader = silent(answer * (1 + off * tolerance))
    reader.reveal(reader.predict("how many?"), answer, by="a formula", tolerance=tolerance)
    assert [each.is_right for each in reader.graded] == [abs(off) < 1]


def test_who_does_not_predict_is_not_graded_and_what_is_shown_does_not_tell_a_guess() -> None:
    guesser = silent(3)
    other = silent()
    for reader in (guesser, other):
        reader.reveal(reader.predict("how many?"), 4, by="counting")
    assert len(guesser.graded) == 1
    assert other.graded == []
    assert guesser.lines == other.lines


def test_a_reader_who_is_there_is_asked_until_a_number_comes() -> None:
    typed = iter(["many", "", "nan", "1,5"])
    shown = list[str]()
    assert Reader(ask=lambda question: next(typed), show=shown.append).predict("how many?") == 1.5
    assert shown == ["predict first: how many?", *["  a prediction is a number, for example 12 or 0.5"] * 3]
    assert Reader(ask=lambda question: "20 %", show=shown.append).predict("which share, in %?") == 20


@pytest.mark.parametrize(
    ("typed", "number"),
    [
        ("1,560", 1560),
        ("12,345,678.5", 12345678.5),
        ("0,125", 0.125),
        ("1,5", 1.5),
        ("1,56", 1.56),
        ("61 %", 61),
        ("ten", None),
    ],
)
def test_a_number_is_read_as_the_pages_write_it(typed: str, number: float | None) -> None:
    assert number_in(typed) == number


def test_what_is_next_leads_through_every_script_and_exercise_to_the_quiz() -> None:
    progress = Progress()
    steps = list[str]()
    while (step := next_step(progress, CHAPTERS)) != "millstream course quiz":
        steps.append(step)
        _, _, verb, key, *script = step.split()
        if verb == "run":
            progress.note_run(f"{key}/{script[0]}", [])
        else:
            progress.note_solved(key)
    assert steps[0] == "millstream course run 1 verify_setup"
    assert (
        len(steps) == len(set(steps)) == sum(len(each.scripts) - len(each.optional) + 1 for each in CHAPTERS)
    )
    assert [step.split()[-1] for step in steps if " check " in step] == [each.key for each in CHAPTERS]


def test_progress_is_kept_and_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    path = progress_file()
    assert load_progress(path) == Progress()
    progress = Progress()
    progress.note_run("1/hello", [Graded("how many?", 3, 3, True)])
    progress.note_run("1/hello", [Graded("how many?", 4, 3, False)])
    progress.note_solved("1")
    save_progress(path, progress)
    assert load_progress(path) == Progress(
        ran=["1/hello"], predicted={"1/hello: how many?": False}, solved=["1"]
    )
    assert [each.name for each in path.parent.iterdir()] == ["course.json"], (
        "written whole, nothing beside it"
    )
    path.write_text("{")
    with pytest.raises(CourseError, match="move it away to begin anew"):
        load_progress(path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "3"], "has no option --size; it has --ranks, --world"),
        (["--ranks", "many"], "--ranks of ring_against_tree is int, got 'many'"),
        (["--ranks"], "--ranks needs a value"),
        (["8"], "expected an option such as --world 3, got '8'"),
    ],
)
def test_a_wrong_option_of_a_script_is_said_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(CourseError) as raised:
        run_script(find_chapter(4), "ring_against_tree", silent(), words)
    assert said in str(raised.value)


def test_chapters_are_numbered_and_every_part_has_some() -> None:
    in_order = [[each.number for each in CHAPTERS if each.part == part] for part in TRACKS]
    for numbers in (*in_order, [each.number for each in CHAPTERS if each.part not in TRACKS]):
        assert numbers == list(range(1, len(numbers) + 1))
    assert len({each.key for each in CHAPTERS}) == len({each.name for each in CHAPTERS}) == len(CHAPTERS)
    assert {chapter.part for chapter in CHAPTERS} == set(PARTS)
    with pytest.raises(CourseError, match="there is no chapter 99"):
        find_chapter(99)
    with pytest.raises(CourseError, match="has no script 'x'; it has verify_setup"):
        find_chapter(1).check_script("x")


def test_a_skeleton_fails_every_test_and_the_solution_none() -> None:
    """Of chapters whose tests start no ranks; the others are the course's own."""
    for number in (1, 4, *range(8, 15), "lab-05", "V4"):
        chapter = find_chapter(number)
        assert all(verdict.problem for verdict in judge(chapter, skeleton_of(chapter)))
        assert not any(verdict.problem for verdict in judge(chapter, solution_of(chapter)))


def test_labs_are_found_and_handed_out_by_their_names(tmp_path: Path) -> None:
    assert find_chapter("LAB-02").name == "lab_ddp"
    assert find_chapter("v3").key == "V3"
    assert [hand_out(find_chapter(key), tmp_path)[0].name for key in ("3", "lab-02", "failures", "V1")] == [
        "chapter_03.py",
        "lab_02.py",
        "failures.py",
        "v1.py",
    ]


def test_every_test_of_a_lab_has_a_hint_and_a_test_that_fails_shows_it(tmp_path: Path) -> None:
    for chapter in CHAPTERS:
        if chapter.part in TRACKS:
            assert all(hints_of(chapter).values()), chapter.key
    done = CliRunner().invoke(app, ["course", "check", "lab-04", "--folder", str(tmp_path)])
    assert done.exit_code == 1
    assert done.output.count("hint: ") == 5
    assert "hint: " not in CliRunner().invoke(app, ["course", "check", "lab-04", "--solution"]).output


def test_a_lab_without_deepspeed_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        CourseError, match=r"^DeepSpeed is not installed: pip install millstream\[deepspeed\]; .*$"
    ):
        run_script(find_chapter("lab-05"), "deepspeed_stages", silent())
    monkeypatch.setattr("course.chapters.lab_deepspeed.before_and_after.run", lambda reader: None)
    done = CliRunner().invoke(app, ["course", "run", "lab-05"])
    assert done.exit_code == 0, done.output
    assert "left out: DeepSpeed is not installed" in done.output


def test_progress_from_before_there_were_labs_is_read(tmp_path: Path) -> None:
    (tmp_path / "course.json").write_text('{"solved": [1, 3]}')
    assert load_progress(tmp_path / "course.json").solved == ["1", "3"]


def test_a_chapter_has_the_number_that_its_file_has_too() -> None:
    assert find_chapter("06") is find_chapter(6)
    assert find_chapter("v2") is find_chapter("V2")


def test_what_a_reader_wrote_is_never_touched(tmp_path: Path) -> None:
    path, is_new = hand_out(find_chapter(1), tmp_path / "mine")
    assert is_new
    path.write_text("def place_of(")
    assert hand_out(find_chapter(1), tmp_path / "mine") == (path, False)
    with pytest.raises(CourseError, match="does not load: SyntaxError"):
        load_answer(path)
    path.write_text("import sys; sys.exit(0)")
    with pytest.raises(CourseError, match="does not load: SystemExit"):
        load_answer(path)
    with pytest.raises(CourseError, match="is not a Python file"):
        load_answer(tmp_path / "nothing.py")


def test_every_question_has_an_answer_that_is_right_and_a_reason() -> None:
    questions = all_questions()
    assert len({each.text for each in questions}) == len(questions) >= 180
    for question in questions:
        assert math.isfinite(question.answer), question.text
        assert question.is_right(question.answer)
        assert not question.is_right(2 * question.answer + 1)
        assert question.why


def test_answers_of_the_quiz_are_those_worked_out_by_hand() -> None:
    answers = {each.text: each.answer for each in all_questions()}
    by_hand = {
        "30 billion parameters, Adam in mixed precision, ZeRO-3 over 64": 7.5,
        "70 billion parameters in bf16": 140,
        "llama-3-70b: 80 layers of width 8192, 8 of 64 heads with keys of their own, bf16": 10,
        "How many times as long does ZeRO-3 talk": 1.5,
        "pipeline of 8 stages need so that stages wait 10%": 63,
    }
    for part, expected in by_hand.items():
        (found,) = [answer for text, answer in answers.items() if part in text]
        assert found == pytest.approx(expected, rel=0.02)


def test_the_quiz_asks_and_grades() -> None:
    questions = choose(4, topic="zero", seed=1)
    typed = iter([f"{questions[0].answer}", "0", "what?", f"{questions[3].answer}"])
    lines = list[str]()
    found = play(questions, lambda question: next(typed), lines.append)
    assert list(found.values()) == [True, False, False, True]
    assert lines[-1] == "2 of 4 right"
    with pytest.raises(CourseError, match="there is no topic 'x'"):
        choose(3, topic="x", seed=0)


def test_a_slider_shows_what_the_planner_says_at_every_position() -> None:
    for name, slider in SLIDERS.items():
        html = find_slider(name).html()
        assert html.count("<input") == len(slider.axes)
        place = [random.Random(0).choice(axis) for axis in slider.axes.values()]
        assert slider.value(*place) in html
    with pytest.raises(CourseError, match="there is no slider"):
        find_slider("x")


def test_the_command_line_lists_checks_and_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    begun = runner.invoke(app, ["course"]).output
    assert "1  Your first distributed program (30 min): 0/4 scripts" in begun
    assert begun.endswith("next: millstream course run 1 verify_setup\n")
    assert runner.invoke(app, ["course", "list"]).output == begun
    first = runner.invoke(app, ["course", "check", "1", "--folder", str(tmp_path)])
    assert first.exit_code == 1
    assert "is yours to fill in" in first.output
    (tmp_path / "chapter_01.py").write_text(solution_of(find_chapter(1)).read_text())
    assert runner.invoke(app, ["course", "check", "1", "--folder", str(tmp_path)]).exit_code == 0
    assert "exercises solved" in runner.invoke(app, ["course", "list"]).output
    quiz = runner.invoke(app, ["course", "quiz", "--count", "1"], input="0\n")
    assert "of 1 right" in quiz.output
    left = runner.invoke(app, ["course", "quiz", "--count", "2"], input="0\n")
    assert left.exit_code == 0, "whoever leaves keeps what was answered"
    assert "of 1 right" in left.output
    monkeypatch.setattr("course.catalogue.heading", lambda part: "▂▃▇ a part")
    assert "??? a part" in CliRunner(charset="cp1252").invoke(app, ["course", "list"]).output, (
        "a Windows code page"
    )
    assert "there is no chapter 99" in runner.invoke(app, ["course", "run", "99"]).output


def test_a_run_is_kept_with_its_prediction() -> None:
    done = CliRunner().invoke(app, ["course", "run", "4", "links", "--predict", "3"])
    assert done.exit_code == 0, done.output
    assert "you said 3: right" in done.output
    kept = json.loads(progress_file().read_text())
    assert kept["ran"] == ["4/links"]
    assert list(kept["predicted"].values()) == [True]
