"""The table of `benchmarks.tune`: means over seeds, points against the model as it was."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.tune import WAYS, table


def judged(thing: float, motion: float) -> list[dict[str, object]]:
    return [{"adherence": {"thing": thing, "motion": motion}, "mean": 0.5, "flicker": 1.0, "lost": 0.1}] * 2


def test_ways_are_compared_with_the_model_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "before.json").write_text(json.dumps({"judged": judged(0.5, 0.7)}))
    for seed, thing in enumerate((0.6, 0.7)):
        spent = {"seconds": 60.0, "steps": 10, "streams": 80}
        (tmp_path / f"grpo-{seed}.json").write_text(json.dumps({"spent": spent, "judged": judged(thing, 0.8)}))
    found = table(argparse.Namespace(out=tmp_path, seeds=3))
    assert found["before"]["soon"]["weakest"] == pytest.approx(0.6)
    assert found["grpo"]["soon"]["points_better"]["thing"] == pytest.approx(15)
    assert (found["grpo"]["soon"]["seeds"], found["grpo"]["steps"]) == (2, 10)
    assert set(found) == {"before", "grpo"} <= {"before", *WAYS}
