"""A log of a run says how far it is while it runs; on a terminal the bar does."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from millstream.commands.log_lines import LogLines
from millstream.commands.progress import ChunkProgress, counting_bar
from millstream.commands.train.stage_progress import StageProgress
from millstream.core.trace import ChunkTiming
from millstream.train.loop import StepReport


def steps_logged(seconds_a_step: float, *, steps: int, is_terminal: bool = False) -> list[str]:
    def clock() -> Iterator[float]:
        for step in range(steps):
            yield step * seconds_a_step

    times = clock()
    file = io.StringIO()
    lines = LogLines(
        Console(file=file, force_terminal=is_terminal, width=20), every_s=30.0, clock=lambda: next(times)
    )
    for step in range(steps):
        lines.add(step + 1, steps, "flow 0.25  norm [1.5]  16,380 tokens/s")
    return file.getvalue().splitlines()


def test_a_log_has_the_first_step_the_last_and_one_now_and_then() -> None:
    said = [line.split(":")[0] for line in steps_logged(10.0, steps=9)]
    assert said == ["step 1 of 9", "step 4 of 9", "step 7 of 9", "step 9 of 9"]


def test_every_stage_has_its_first_step_in_the_log() -> None:
    file = io.StringIO()
    with StageProgress(Console(file=file, width=80)) as progress:
        for stage in ("vae", "teacher"):
            for step in range(3):
                progress.add(
                    stage, StepReport(step=step, total=9, losses={"flow": 0.25}, lr=0.1, seconds=step)
                )
    assert file.getvalue().splitlines() == [
        "step 1 of 9: vae  flow 0.2500",
        "step 1 of 9: teacher  flow 0.2500",
    ]


def test_a_line_is_one_line_however_narrow_the_console_is() -> None:
    assert steps_logged(60.0, steps=2)[0] == "step 1 of 2: flow 0.25  norm [1.5]  16,380 tokens/s"


def test_a_terminal_has_a_bar_and_no_lines() -> None:
    assert steps_logged(60.0, steps=5, is_terminal=True) == []


def test_what_is_counted_is_in_a_log_before_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    with counting_bar("video", 3) as tick:
        tick()
        assert capsys.readouterr().err == "video 1 of 3\n"
        tick()
        tick()
    assert capsys.readouterr().err == "video 3 of 3\n"


@pytest.mark.parametrize(("total", "of"), [(21, " of 21"), (None, "")])
def test_chunks_are_in_a_log_before_the_last_one_has_come(
    capsys: pytest.CaptureFixture[str], total: int | None, of: str
) -> None:
    with ChunkProgress("brook", total_frames=total) as progress:
        progress.add(ChunkTiming(total_ms=1000.0, phases_ms={"dit": 700.0}), 9)
        assert capsys.readouterr().err == f"brook: frame 9{of}: 9.0 FPS, ms: dit 700\n"
        progress.add(ChunkTiming(total_ms=1000.0, phases_ms={"dit": 700.0}), 12)
    said = capsys.readouterr().err
    assert ("brook: frame 21 of 21" in said) == (total is not None)
    assert "21 frames in 2.00 s" in said


def test_a_quiet_run_says_nothing_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with ChunkProgress("brook", total_frames=9, quiet=True) as progress:
        progress.add(ChunkTiming(total_ms=1000.0, phases_ms={"dit": 700.0}), 9)
    assert capsys.readouterr().err == ""
