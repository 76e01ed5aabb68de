"""Training from the command line: a miniature run from nothing to a judged stream."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from millstream.commands.train.stage_progress import StageProgress
from millstream.commands.train.tune import start_command
from millstream.core.config import ActionsConfig, ConditionsConfig
from millstream.core.errors import ConfigError
from millstream.core.presets import MODELS, find_model
from millstream.models.brook.bundle import build
from millstream.models.conditions.files import conditions_in
from millstream.train.brook import BrookRun
from millstream.train.data.actions_file import KEYS
from millstream.train.distil.pool_training import PoolTraining
from millstream.train.evaluate import held_back
from millstream.train.plan import read_plan
from millstream.train.recipe import RECIPES
from tests.unit.commands.test_cli import millstream
from tests.unit.small_brook import SMALL_BROOK
from tests.unit.train.finetune.datasets import small_dataset

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _narrow() -> Iterator[None]:
    """A whole run takes a minute and a half of a Brook as large as it is, and seconds of a small one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, "brook", SMALL_BROOK)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("brook")
    assert millstream("train", "brook", "--smoke", "--device", "cpu", "--out", folder)[0] == 0
    return folder


@pytest.mark.parametrize(
    ("ranks", "command"),
    [
        (1, "millstream train my.toml"),
        (4, "torchrun --nproc-per-node 4 -m millstream train my.toml"),
        (
            64,
            "on each of 8 machines: torchrun --nnodes 8 --nproc-per-node 8 --rdzv-backend c10d "
            "--rdzv-endpoint HOST:29400",
        ),
    ],
)
def test_a_plan_says_how_it_is_started(ranks: int, command: str) -> None:
    assert start_command(Path("my.toml"), ranks).startswith(command)


def test_every_stage_leaves_its_log_and_the_run_its_model(run: Path) -> None:
    stages = ["vae", "teacher", "ode", "self-forcing", "polish", "classifier", "motion"]
    for stage in stages:
        lines = [json.loads(line) for line in (run / f"{stage}.jsonl").read_text().splitlines()]
        assert lines[0]["step"] == 0
        assert all(value == value for line in lines for value in line.values())
    parts = build(SMALL_BROOK, SMALL_BROOK.text.vocabulary)
    numbers = sum(parameter.numel() for part in parts for parameter in part.parameters())
    assert (run / "brook.safetensors").stat().st_size <= 2 * numbers + 2**16, (
        "two bytes a number, and a header"
    )


def test_a_run_shows_what_it_learns_and_where_its_time_goes(run: Path) -> None:
    sheets = sorted(path.name for path in (run / "samples").iterdir())
    assert sheets == [
        "ode-000002.png",
        "polish-000002.png",
        "self-forcing-000003.png",
        "teacher-000005.png",
        "vae-000005.png",
    ]
    assert list((run / "board").glob("events.*"))
    ledger = [json.loads(line)["what"] for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert {"rendering", "rendering for the VAE", "vae", "teacher", "self-forcing", "polish"} <= set(ledger)


def test_a_run_that_is_done_is_not_trained_again(run: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in run.glob("*-average.pt")}
    assert millstream("train", "brook", "--smoke", "--device", "cpu", "--out", run)[0] == 0
    assert {path.name: path.stat().st_mtime_ns for path in run.glob("*-average.pt")} == before


def test_a_second_self_forcing_goes_on_from_the_firsts_average_with_a_critic_like_the_teacher(
    run: Path,
) -> None:
    plan = read_plan(RECIPES / "brook-smoke.toml")
    brook = BrookRun(plan, run, device=torch.device("cpu"))
    brook.train(lambda stage, said: None, until="self-forcing")
    training = brook._training(plan.stage("polish"))
    assert isinstance(training, PoolTraining)
    student = training.learner.weights()
    critic = training.distillation._judges._critic.weights()  # type: ignore[attr-defined]
    before, teacher = (
        torch.load(run / f"{name}-average.pt", weights_only=True) for name in ("self-forcing", "teacher")
    )
    assert all(torch.equal(student[name], tensor) for name, tensor in before.items())
    assert all(torch.equal(tensor, teacher[f"dit.{name}"]) for name, tensor in critic.items())
    polished = torch.load(run / "polish-average.pt", weights_only=True)
    assert any(not torch.equal(polished[name], tensor) for name, tensor in before.items())


def test_a_recipe_may_match_distributions_after_real_frames(run: Path) -> None:
    plan = read_plan(RECIPES / "brook-smoke.toml")
    given = replace(plan.stage("self-forcing"), name="given", method="dmd", options={"forcing": "diffusion"})
    brook = BrookRun(replace(plan, stages=(*plan.stages[:3], given)), run, device=torch.device("cpu"))
    brook.train(lambda stage, said: None)
    matched, before = (torch.load(run / f"{name}-average.pt", weights_only=True) for name in ("given", "ode"))
    assert any(not torch.equal(matched[name], tensor) for name, tensor in before.items())
    assert brook.student is not None
    assert all(torch.equal(brook.student.dit.state_dict()[name], tensor) for name, tensor in matched.items())


def test_a_favoured_word_that_no_caption_says_is_named(run: Path) -> None:
    plan = read_plan(RECIPES / "brook-smoke.toml")
    stage = replace(plan.stage("polish"), options={"favoured": "space zeppelin"})
    with pytest.raises(ConfigError, match="zeppelin"):
        BrookRun(plan, run, device=torch.device("cpu"))._training(stage)


def test_what_was_trained_streams_and_says_what_it_did_not_understand(run: Path, tmp_path: Path) -> None:
    arguments = [
        "--model",
        "brook",
        "--weights",
        run / "brook.safetensors",
        "--size",
        "64x64",
        "--chunks",
        1,
        "--quiet",
    ]
    code, _, errors = millstream(
        "generate", "a red zeppelin over the sea, a hammer", *arguments, "--out", tmp_path / "clip.mp4"
    )
    assert code == 0
    assert errors.splitlines() == ["not understood by brook: hammer"]


def test_what_was_trained_is_judged(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "judged.json"
    plots = tmp_path / "plots"
    weights = run / "brook.safetensors"
    judge = run / "classifier.safetensors"
    options = [
        "--weights",
        weights,
        "--classifier",
        judge,
        "--count",
        2,
        "--device",
        "cpu",
        "--out",
        out,
        "--plots",
        plots,
    ]
    assert millstream("train", "eval", *options, "--response-pairs", 0, "--steps", 1)[0] == 0
    judged = json.loads(out.read_text())
    assert judged["steps"] == [1000.0]
    assert [each["prompts"] for each in judged["adherence"]] == ["seen", "held out"]
    moments = [moment for each in judged["adherence"] for moment in each["moments"]]
    assert [moment["second"] for moment in moments] == [2.0, 2.0]
    assert all(
        set(moment["adherence"]) == {"setting", "time", "weather", "thing", "colour", "motion"}
        for moment in moments
    )
    assert {path.name for path in plots.iterdir()} == {"adherence.png", "drift.png"}


def test_what_was_trained_is_steered_by_keys_and_replayed_exactly(run: Path, tmp_path: Path) -> None:
    events = tmp_path / "events.json"
    events.write_text('[{"at": 1, "type": "actions", "keys": ["left", "w"], "look": [9, 0]}]')
    weights = run / "brook.safetensors"
    assert conditions_in(weights) == ConditionsConfig(actions=ActionsConfig(keys=KEYS, look=True))
    streams = list[bytes]()
    for name, more in (("idle", []), ("steered", ["--events", events])):
        journal = tmp_path / f"{name}.jsonl"
        asked = [
            "--weights",
            weights,
            "--size",
            "64x64",
            "--chunks",
            3,
            "--seed",
            3,
            "--precision",
            "fp32",
            "--quiet",
            *more,
        ]
        out = ["--out", tmp_path / f"{name}.mp4", "--journal", journal]
        assert millstream("generate", "a red boat on the sea, on a walk", *asked, *out)[0] == 0
        streams.append(journal.read_bytes())
        code, said, _ = millstream("replay", journal, "--check")
        assert (code, "identical" in said) == (0, True)
    idle, steered = (
        [line["digest"] for line in map(json.loads, lines.splitlines()) if "digest" in line]
        for lines in streams
    )
    assert len(steered) == len(idle) == 3
    assert steered[0] == idle[0]
    assert steered[2] != idle[2], "the key is held from the last chunk on"


def test_walks_by_keys_are_judged(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "judged.json"
    options = [
        "--weights",
        run / "brook.safetensors",
        "--count",
        2,
        "--device",
        "cpu",
        "--steps",
        1,
        "--out",
        out,
    ]
    judge = ["--motion", run / "motion.safetensors"]
    assert millstream("train", "eval", *options, *judge, "--response-pairs", 0)[0] == 0
    found = json.loads(out.read_text())["steering"]
    assert found["walks"] == 2
    assert set(found["streamed"]["correlation"]) == {"ahead", "aside", "turn", "tilt"}
    code, _, said = millstream("train", "eval", "--device", "cpu", "--weights", "random", *judge)
    assert code != 0
    assert "this model takes no keys" in said


JUDGE_IN_MINIATURE = ("judge", "--clips", 2, "--steps", 2, "--batch", 2, "--size", 16)


@pytest.mark.parametrize("command", [("brook", "--smoke"), JUDGE_IN_MINIATURE])
def test_asked_to_stop_a_run_says_what_is_saved(
    command: tuple[object, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(StageProgress, "add", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    code, said, log = millstream("train", *command, "--device", "cpu", "--out", tmp_path)
    assert (code, said) == (130, "")
    assert f"stopped and saved in {tmp_path}; the same command goes on" in log.splitlines()
    assert "stopping when this step is done and saved" in capfd.readouterr().err
    assert list(tmp_path.glob("*.pt"))


def test_stopped_at_once_a_run_says_what_it_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BrookRun, "train", interrupted)  # as while it renders
    code, _, said = millstream("train", "brook", "--smoke", "--device", "cpu", "--out", tmp_path)
    assert (code, said.strip()) == (
        130,
        f"stopped at once; the same command goes on from what is saved in {tmp_path}",
    )


def test_a_log_of_a_judges_training_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_back, "RENDERED", 1)
    code, said, log = millstream("train", *JUDGE_IN_MINIATURE, "--device", "cpu", "--out", tmp_path)
    assert (code, said.strip()) == (0, str(tmp_path / "judge.safetensors"))
    lines = log.splitlines()
    assert lines[:2] == ["renders 1 of 2", "renders 2 of 2"]
    assert [line.partition(": ")[0] for line in lines[2:4]] == ["step 1 of 2", "step 2 of 2"]


def test_a_dry_run_trains_nothing(tmp_path: Path) -> None:
    code, _, errors = millstream("train", "brook", "--dry-run", "--out", tmp_path / "run")
    assert code == 0
    assert "self-forcing" in errors
    assert not (tmp_path / "run").exists()


def test_a_dry_run_refuses_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    code, said, errors = millstream("train", "brook", "--dry-run", "--out", tmp_path / "taken" / "run")
    assert (code, said) == (2, "")
    assert errors.splitlines() == [
        f"error: {tmp_path}/taken/run/run.json: {tmp_path}/taken is not a folder; choose another --out"
    ]


def test_a_dry_run_of_a_recipe_says_what_is_held_where(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    plain = (
        'model = "wan2.1-t2v-1.3b"\nweights = ["random"]\ndata = "clips"\n'
        'steps = 6\nbatch = 4\nlr = 1e-4\nprecision = "bf16"\n'
    )
    path.write_text(plain)
    code, said, _ = millstream("train", path, "--dry-run")
    assert code == 0
    assert "host memory" not in said
    path.write_text(plain + 'state_bits = 8\noffload = "optimiser"\n')
    code, said, _ = millstream("train", path, "--dry-run")
    assert code == 0
    assert "there are no clips in clips yet" in said
    assert "adamw, 8 bits" in said
    assert "MiB of host memory" in said


def test_a_dry_run_says_what_a_step_takes_where_there_are_clips(tmp_path: Path) -> None:
    """As measured on an H200: 1.74 s and, with the optimiser, 26.5 GiB (benchmarks/train_step.py)."""
    small_dataset(tmp_path / "clips", 1, sizes=((60, 104),), spec=find_model("wan2.1-t2v-1.3b"), frames=21)
    path = tmp_path / "recipe.toml"
    asked = (
        'model = "wan2.1-t2v-1.3b"\nweights = ["random"]\ndata = "clips"\nsteps = 6\nbatch = 1\nlr = 1e-4\n'
    )
    path.write_text(asked + 'precision = "bf16"\nforcing = "diffusion"\nrecompute = "full"\n')
    code, said, _ = millstream("train", path, "--dry-run")
    assert code == 0
    found = re.search(r"on an H200\D+([\d.]+) s a step, ([\d.]+) GiB", said)
    assert found is not None, said
    assert float(found[1]) == pytest.approx(1.74, rel=0.1)
    assert float(found[2]) == pytest.approx(26.5, rel=0.05)


def test_a_dry_run_refuses_clips_of_another_model_as_the_run_would(tmp_path: Path) -> None:
    small_dataset(tmp_path / "clips", 1)
    path = tmp_path / "recipe.toml"
    path.write_text(
        'model = "wan2.1-t2v-1.3b"\nweights = ["random"]\ndata = "clips"\nsteps = 6\nbatch = 1\nlr = 1e-4\n'
    )
    code, said, errors = millstream("train", path, "--dry-run")
    assert (code, said) == (2, "")
    assert "the recipe trains wan2.1-t2v-1.3b; prepare it for that" in errors


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (["brook", "--until", "graduation"], "teacher"),
        (["brook", "--recipe", "none.toml"], "none.toml"),
        (["brook", "--smoke", "--recipe", "x.toml"], "not both"),
        (["eval", "--seconds", "soon"], "commas"),
        (["eval", "--count", "1"], "at least 2"),
        (["eval", "--seconds", "10,2"], "rise"),
        (["eval", "--seconds", "1"], "from 2"),
        (["eval", "--weights", "none.safetensors"], "none.safetensors"),
        (["judge", "--size", "50"], "a multiple of 16"),
        (["ranges", "--weights", "bundled"], "name the file of yours"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(arguments: list[str], fix: str, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "run"] if arguments[0] == "brook" else []
    code, _, errors = millstream("train", *arguments, *out)
    assert code == 2
    assert len(errors.strip().splitlines()) == 1, errors
    assert fix in errors
