"""Runs side by side: what was written down is what is shown."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import pytest

from millstream.commands.train.compare import _read, compare
from millstream.core.errors import ConfigError


def write_run(folder: Path, losses: list[float | None], *, seconds_per_step: float, dp: int = 1) -> Path:
    folder.mkdir()
    parallel = {"pp": 1, "dp": dp, "cp": 1, "tp": 1}
    record = {
        "configuration": {"parallel": parallel},
        "measured": {"learning": 1},
        "versions": {"torch": "<2>"},
    }
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "recipe.toml").write_text(f"batch = 4\nlr = {seconds_per_step}\n[lora]\nrank = 8\n")
    same = {"lr": 1, "norm": 1, "skipped": 0, "peak_gib": 2.5, "data": 0.02}
    lines = [
        {"step": 10 * n, "seconds": 10 * n * seconds_per_step, "tokens": 10_000 * n, "flow": loss, **same}
        for n, loss in enumerate(losses)
    ]
    (folder / "curve.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_the_page_has_both_curves_and_what_each_run_cost(tmp_path: Path) -> None:
    slow = write_run(tmp_path / "slow", [1.0, 0.5, 0.6], seconds_per_step=2.0)
    quick = write_run(tmp_path / "quick", [1.0, 0.4, None], seconds_per_step=0.5, dp=4)
    lines = compare([slow, quick], tmp_path / "page.html")
    about = "steps/s {}  tokens/s {}  data 2.0%  peak GiB 2.50  left out 0"
    assert lines == [
        f"run slow  ranks 1  steps 21  last loss 0.6000  lowest 0.5000  {about.format('0.5', '500')}",
        f"run quick  ranks 4  steps 21  last loss 0.4000  lowest 0.4000  {about.format('2', '2,000')}",
    ]
    page = (tmp_path / "page.html").read_text()
    assert page.count("<polyline") == 6
    differs, _, everything = page.partition("<details>")
    assert "<td>lr</td><td>2.0</td><td>0.5</td>" in differs
    assert "<td>configuration.parallel.dp</td><td>1</td><td>4</td>" in differs
    assert "<td>batch</td>" not in differs
    assert "<td>lora.rank</td><td>8</td><td>8</td>" in everything
    assert "Newest samples" not in page
    assert "&lt;2&gt;" in page
    assert "<2>" not in page


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [1.0], seconds_per_step=1.0)
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match="other is no run of"):
        compare([run, tmp_path / "other"], tmp_path / "page.html")
    with pytest.raises(ConfigError, match="name two runs or more"):
        compare([run, run], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_the_newest_samples_are_in_the_page_itself(tmp_path: Path) -> None:
    one, other = (write_run(tmp_path / name, [1.0, 0.5], seconds_per_step=1.0) for name in ("one", "other"))
    (one / "samples").mkdir()
    for step in (0, 100):
        (one / "samples" / f"tuning-{step:06d}.png").write_bytes(f"picture {step}".encode())
    compare([one, other], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<img") == 1
    assert b64encode(b"picture 100").decode() in page


def test_a_clock_that_begins_anew_goes_on(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [1.0, 0.5, 0.4], seconds_per_step=6.0)
    lines = [json.loads(line) for line in (run / "curve.jsonl").read_text().splitlines()]
    lines[2]["seconds"] = 30.0  # taken up again after the second line
    (run / "curve.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [minutes for minutes, _ in _read(run).by_minutes("flow")] == [0.0, 1.0, 1.5]
