"""The benchmark of Brook's recipe: what a run's files say, and what was missed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import brook_recipe
from benchmarks.brook_recipe import DOCS, means, minutes_of, missed, report, seconds_of


def judged(mean: float) -> dict[str, object]:
    moments = [{"second": 2.0, "mean": mean}, {"second": 30.0, "mean": 0.95}]
    return {"adherence": [{"prompts": prompts, "moments": moments} for prompts in ("seen", "held out")]}


def test_a_stage_that_took_several_processes_is_counted_whole() -> None:
    spent = (("vae", 100.5), ("teacher", 40), ("teacher", 2))
    ledger = [{"what": what, "seconds": seconds, "ranks": 1} for what, seconds in spent]
    assert seconds_of(ledger) == {"vae": 100.5, "teacher": 42.0}


def test_rendering_is_in_the_time_of_its_stage_already() -> None:
    assert (
        minutes_of({"rendering for the VAE": 3.0, "vae": 120.0, "rendering": 60.0, "classifier": 90.0}) == 3.5
    )


def test_what_takes_too_long_or_follows_its_prompts_less_is_named() -> None:
    before = means(judged(0.96))
    assert set(before) == {"seen, 2 s", "seen, 30 s", "held out, 2 s", "held out, 30 s"}
    assert missed({"teacher": 600.0}, means(judged(0.94)), before) == []
    assert missed({"teacher": 1860.0}, means(judged(0.9)), before) == [
        "trained in 31.0 min, at most 30",
        "seen, 2 s: 6.0 points less",
        "held out, 2 s: 6.0 points less",
    ]


@pytest.mark.parametrize("ranks", [1, 8])
def test_who_judges_again_says_how_many_ranks_had_trained(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ledger.jsonl").write_text(json.dumps({"what": "vae", "seconds": 90, "ranks": ranks}) + "\n")
    (tmp_path / "eval.json").write_text((DOCS / "training" / "eval.json").read_text())
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(brook_recipe, "judge", lambda folder: None)
    monkeypatch.setattr(brook_recipe, "write_report", lambda name, asked, found: written.append(asked))
    monkeypatch.setattr("sys.argv", ["brook_recipe", "--judge", "--out", str(tmp_path)])
    brook_recipe.main()
    assert written[0]["ranks"] == str(ranks)


def test_a_run_is_held_against_the_brook_of_the_docs(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_text('{"what": "vae", "seconds": 90}\n')
    (tmp_path / "eval.json").write_text((DOCS / "training" / "eval.json").read_text())
    found = report(tmp_path)
    assert found["minutes"] == 1.5
    assert found["missed"] == []
    assert (
        found["means"]
        == found["means_before"]
        == means(json.loads((DOCS / "training" / "eval.json").read_text()))
    )
