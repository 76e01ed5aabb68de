"""A training run's file is read, or refused in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream.core.errors import ConfigError
from millstream.train.plan import read_plan


@pytest.mark.parametrize(
    "text",
    [
        "",
        "model = 3",
        'model = "brook"\nstages = []',
        'model = "brook"\n[[stages]]\nname = "x"\nmethod = "magic"',
        "[[",
    ],
)
def test_a_plan_that_is_wrong_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_plan(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "options", "fix"),
    [
        ("flow", "{ widnow = 9 }", "the options of flow are frames_per_chunk, window"),
        ("ode", "{ teacher_steps = 2.5 }", "teacher_steps"),
        ("self_forcing", '{ favoured = ["sea"] }', "favoured"),
        ("flow", '{ forcing = "force" }', "forcing"),
        ("classify", "{ window = 9 }", "the options of classify are none"),
    ],
)
def test_an_option_that_a_method_does_not_know_is_refused_when_the_plan_is_read(
    method: str, options: str, fix: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    stage = f'name = "late"\nmethod = "{method}"\nsteps = 1\nbatch = 1\nlr = 1.0\noptions = {options}'
    path.write_text(f'model = "brook"\n[[stages]]\n{stage}')
    with pytest.raises(ConfigError, match=re.escape(fix)) as caught:
        read_plan(path)
    assert "'late'" in str(caught.value)
    assert "\n" not in str(caught.value)
