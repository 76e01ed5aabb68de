"""A plan that is handed to `serve`: it starts what was planned, or says why it cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import millstream.server.app  # noqa: F401  (what it imports starts a process, which no quick test may)
from millstream.commands import serve as serving
from millstream.commands.main import app
from millstream.commands.plan.options import PlanOptions
from millstream.commands.plan.use import settings_of
from millstream.commands.serve import ServeOptions
from millstream.core.config import StreamConfig
from millstream.core.errors import ConfigError
from millstream.core.presets import find_model
from millstream.engine.engine import stream_config
from millstream.planner.record import answer_record
from millstream.planner.search import search


@pytest.fixture(autouse=True)
def machine_that_was_never_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HOME", str(tmp_path / "home"))


def planned(folder: Path, *words: str, **changes: Any) -> Path:
    """What `plan --json` printed, with entries of the ask changed."""
    record = json.loads(CliRunner().invoke(app, ["plan", *words, "--json"]).stdout)
    if changes.get("stream"):
        changes["stream"] = record["ask"]["stream"] | changes["stream"]
    record["ask"].update(changes)
    path = folder / "plan.json"
    path.write_text(json.dumps(record))
    return path


BIG = (
    "-m",
    "wan2.1-t2v-14b",
    "--gpus",
    "4xH200",
    "--size",
    "320x576",
    "--fps",
    "24",
    "--software",
    "compiled",
    "--window",
    "9",
)


def test_what_was_planned_is_what_is_set(tmp_path: Path) -> None:
    path = planned(tmp_path, *BIG, "--steps", "1000,500", "--topology", "front+tp2")
    settings = settings_of(path)
    assert settings.model == "wan2.1-t2v-14b"
    assert str(settings.topology) == "front+tp2"
    stream = settings.stream
    assert (stream.height, stream.width, stream.fps, stream.window, stream.steps) == (
        320,
        576,
        24.0,
        9,
        (1000.0, 500.0),
    )


def test_what_a_schedule_says_of_noise_chunks_and_sinks_is_served_as_it_was_planned(tmp_path: Path) -> None:
    """Krea's has a shift of its own and steps that are not warped."""
    krea = stream_config(find_model("wan2.1-t2v-14b").stream, "krea")
    assert krea.noise_levels != find_model("wan2.1-t2v-14b").stream.noise_levels
    big = dict(zip(BIG[::2], BIG[1::2], strict=True)) | {"--schedule": "krea"}
    found = settings_of(planned(tmp_path, *(word for pair in big.items() for word in pair))).stream
    assert found == replace(krea, height=320, width=576, fps=24.0, window=9)


def test_the_best_plan_of_several_is_taken(tmp_path: Path) -> None:
    path = planned(tmp_path, *BIG)
    assert str(settings_of(path).topology) == json.loads(path.read_text())["plans"][0]["topology"]


def test_serve_starts_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[ServeOptions, StreamConfig]] = []
    monkeypatch.setattr(
        serving, "run_server", lambda options, stream, keyring: asked.append((options, stream))
    )
    path = planned(
        tmp_path, "-m", "brook", "--gpus", "laptop-cpu", "--size", "128x192", "--fps", "4", "--batch", "2"
    )
    result = CliRunner().invoke(app, ["serve", "--plan", str(path), "--port", "0"])
    assert result.exit_code == 0, result.output
    ((options, stream),) = asked
    assert (options.model, options.topology, options.batch) == ("brook", "local", 2)
    assert (stream.height, stream.width, stream.fps) == (128, 192, 4.0)


class Started(Exception):
    """A server that would now load its model."""


def ask(model: str, gpus: str, size: str, fps: float, **options: Any) -> PlanOptions:
    return PlanOptions(model=model, gpus=gpus, size=size, fps=fps, **options)


ASKS = (
    ask("wan2.1-t2v-1.3b", "4xH200", "480x832", 16.0, sessions=4),
    ask("wan2.1-t2v-1.3b", "1xH200", "480x832", 24.0, precision="fp8"),
    ask("wan2.1-t2v-14b", "4xH200", "320x576", 24.0),
    ask("wan2.1-t2v-14b", "8xH100", "320x576", 8.0, sessions=6, batch=2),
    ask("wan2.1-t2v-14b", "8xB200", "480x832", 16.0, precision="fp8", sessions=8),
    ask("brook", "4xlaptop-cpu", "128x128", 2.0),
)


def plans_that_hold(request: PlanOptions) -> list[tuple[str, dict[str, Any]]]:
    """Each as `plan --json --topology` would print it."""
    answer = search(request.ask())
    record = answer_record(answer, shown=len(answer.plans))
    return [(plan["topology"], {**record, "plans": [plan]}) for plan in record["plans"] if plan["holds"]]


@pytest.mark.parametrize(
    "request_", ASKS, ids=lambda request: f"{request.model}-{request.gpus}-{request.precision}"
)
def test_serve_takes_every_plan_that_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: PlanOptions
) -> None:
    """As far as loading the model, which is where it would first need the devices."""
    asked: list[Any] = []

    def load_engine(config: Any, stream: Any) -> None:
        asked.append((config, stream))
        raise Started

    monkeypatch.setattr("millstream.commands.engine_from_options.load_engine", load_engine)
    monkeypatch.setattr(
        "millstream.server.logs.set_up_logging", lambda **_: None
    )  # of the process that tests run in
    plans = plans_that_hold(request_)
    path = tmp_path / "plan.json"
    assert plans, "no plan holds, so nothing was tried"
    for topology, record in plans:
        path.write_text(json.dumps(record))
        words = [
            "serve",
            "--plan",
            str(path),
            "--port",
            "0",
            "--data",
            str(tmp_path / "data"),
            "--weights",
            "random",
        ]
        result = CliRunner().invoke(app, words)
        assert isinstance(result.exception, Started), f"{topology}: {result.output}"
        config, stream = asked.pop()
        assert (str(config.topology), config.model) == (topology, request_.model)
        assert bool(config.speed.fp8) == (request_.precision == "fp8")
        assert (stream.height, stream.fps) == (request_.changes()["height"], request_.fps)


def test_among_them_are_meshes_whose_front_has_no_device_of_its_own() -> None:
    topologies = {topology for request in ASKS for topology, _ in plans_that_hold(request)}
    assert {"local", "tp2", "sp2", "front+tp2", "front+sp2"} <= topologies


def test_a_plan_and_what_it_says_already_do_not_go_together(tmp_path: Path) -> None:
    path = planned(tmp_path, *BIG)
    result = CliRunner().invoke(app, ["serve", "--plan", str(path), "--batch", "4"])
    assert result.exit_code == 2
    assert "leave them out" in result.output


def test_a_plan_that_does_not_hold_is_not_served(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not hold its promise: a device"):
        settings_of(planned(tmp_path, "-m", "wan2.1-t2v-14b", "--gpus", "RTX5090", "--fps", "60"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(model="layers=30,width=1536"), "cannot be served"),
        (dict(stream={"height": "large"}), "not a whole plan"),
        (dict(stream={"window": -3}), "cannot be served"),
        (dict(stream={"steps": None}), "not a whole plan"),
        (dict(stream=None), "not a whole plan"),
    ],
)
def test_what_cannot_be_served_is_one_line(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        settings_of(planned(tmp_path, *BIG, **changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a plan"),
        ("[]", "another format"),
        ('{"format": "millstream-plan", "version": 9}', "version"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        settings_of(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        settings_of(tmp_path / "nowhere.json")
