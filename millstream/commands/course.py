"""`millstream course`: how its options are spelled. Loads no torch."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from millstream.commands.options import with_options
from millstream.core.errors import CourseError

CHECKOUT = Path(__file__).parents[2]
"""The repository, where the package is installed from one with `pip install -e`."""

course = typer.Typer(
    name="course",
    invoke_without_command=True,
    subcommand_metavar="[COMMAND]",
    rich_markup_mode="rich",
    help="Learn how models are spread over machines: chapters that run, predictions that are graded.",
)
ChapterKey = Annotated[
    str,
    typer.Argument(metavar="N", help="The chapter's number, or a name such as lab-02.", show_default=False),
]


def _find_course() -> None:
    """Make the checkout's `course` importable, here and in the processes that scripts start."""
    if not (CHECKOUT / "course" / "catalogue.py").is_file():
        raise CourseError(
            "the course is not part of the installed package: clone the repository, "
            "install it with `pip install -e .` and run `millstream course` again"
        )
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))


@course.callback()
def begin(context: typer.Context) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a Windows code page has no letter for every drawing
    if context.invoked_subcommand is None:
        list_chapters()


@course.command("list")
@with_options
def list_chapters() -> None:
    """List what there is to learn, and how far you are."""
    _find_course()
    from course.catalogue import CHAPTERS, PARTS, heading
    from course.progress import load_progress, next_step, progress_file
    from course.reading.catalogue import PAPERS

    done = load_progress(progress_file())
    for part in PARTS:
        typer.echo(heading(part))
        for chapter in (each for each in CHAPTERS if each.part == part):
            ran = sum(f"{chapter.key}/{script}" in done.ran for script in chapter.scripts)
            exercises = "exercises solved" if chapter.key in done.solved else "exercises open"
            how_far = f"{ran}/{len(chapter.scripts)} scripts, {exercises}"
            typer.echo(f"  {chapter.key}  {chapter.title} ({chapter.minutes} min): {how_far}")
            typer.echo(f"     {', '.join(chapter.scripts)}")
    right = sum(done.predicted.values())
    asked = len(done.predicted)
    typer.echo(
        f"Reading map: {len(PAPERS)} papers, three questions each: millstream course quiz --topic "
        f"{PAPERS[0].name}"
    )
    typer.echo(
        f"predictions: {right} of {asked} right; quiz: {sum(done.quiz.values())} of {len(done.quiz)} right"
    )
    typer.echo("pages: make course, or pip install mkdocs-material and python -m course.site out/course")
    typer.echo(f"next: {next_step(done, CHAPTERS)}")


@course.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@with_options
def run(
    context: typer.Context,
    key: ChapterKey,
    script: Annotated[
        str | None, typer.Argument(help="One of its scripts; all if not said.", show_default=False)
    ] = None,
    predict: Annotated[
        list[float] | None,
        typer.Option(help="Your prediction, instead of typing it; once a question.", show_default=False),
    ] = None,
) -> None:
    """Run a chapter's scripts. What follows a script's name is for the script, such as --world 4.

    [bold]Try[/]: millstream course run 1 hello_distributed --world 4
    """
    _find_course()
    from course.catalogue import CHAPTERS, find_chapter
    from course.progress import load_progress, next_step, progress_file, save_progress
    from course.reader import Reader
    from course.running import run_script

    chapter = find_chapter(key)
    if script is not None and script.startswith("-"):
        raise CourseError(f"name a script before its options, for example {chapter.scripts[0]} {script}")
    for name in chapter.scripts if script is None else (script,):
        typer.echo(f"--- {chapter.key}: {name}")
        reader = Reader(predict or (), ask=_ask())
        try:
            run_script(chapter, name, reader, context.args)
        except NotImplementedError as error:
            raise CourseError(f"{error} is not filled in yet") from None
        except CourseError as error:
            if script is not None or name not in chapter.optional:
                raise
            typer.echo(f"left out: {error}")
            continue
        except AssertionError as error:
            raise CourseError(f"{name} does not hold what it claims here: {error}") from error
        progress = load_progress(progress_file())
        progress.note_run(f"{chapter.key}/{name}", reader.graded)
        save_progress(progress_file(), progress)
    typer.echo(f"read about it in {chapter.page}; next: {next_step(progress, CHAPTERS)}")


@course.command()
@with_options
def check(
    key: ChapterKey,
    folder: Annotated[Path, typer.Option(help="Where your answers are.")] = Path("millstream-course"),
    solution: Annotated[
        bool, typer.Option("--solution", help="Check our solution instead, and say where it is.")
    ] = False,
) -> None:
    """Hand out a chapter's exercises, then test what you made of them. Exits with 1 while a test fails."""
    _find_course()
    from course.catalogue import CHAPTERS, find_chapter
    from course.checking import hand_out, judge, solution_of
    from course.progress import load_progress, next_step, progress_file, save_progress

    chapter = find_chapter(key)
    path, is_new = (solution_of(chapter), False) if solution else hand_out(chapter, folder)
    typer.echo(f"{path} is yours to fill in; then run this again" if is_new else f"checking {path}")
    verdicts = judge(chapter, path)
    for verdict in verdicts:
        typer.echo(f"  {'not yet' if verdict.problem else 'passes '}  {verdict.claim}")
        if verdict.problem:
            typer.echo(f"           {verdict.problem}")
        if verdict.problem and verdict.hint:
            typer.echo(f"           hint: {verdict.hint}")
    if any(verdict.problem for verdict in verdicts):
        raise typer.Exit(1)
    if not solution:
        progress = load_progress(progress_file())
        progress.note_solved(chapter.key)
        save_progress(progress_file(), progress)
        typer.echo(f"next: {next_step(progress, CHAPTERS)}")


@course.command()
@with_options
def quiz(
    count: Annotated[int, typer.Option(help="How many questions.")] = 10,
    topic: Annotated[
        str | None, typer.Option(help="Of one topic only, such as zero or bubble.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed asks others.")] = 0,
) -> None:
    """Questions whose answers are computed: memory, communication time, bubbles. Answers are read from
    standard input."""
    _find_course()
    from course.progress import load_progress, progress_file, save_progress
    from course.quiz import choose, play

    found = play(choose(count, topic=topic, seed=seed), input, typer.echo)
    progress = load_progress(progress_file())
    progress.quiz |= found
    save_progress(progress_file(), progress)


def _ask() -> Callable[[str], str] | None:
    """None where no person sits in front of this."""
    return _typed if sys.stdin.isatty() else None


def _typed(question: str) -> str:
    try:
        return input(question)
    except EOFError:
        raise CourseError("no answer came: type a number, or give it with --predict") from None
