"""`millstream tune` as a person calls it: a run's folder, its file, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from millstream.commands.main import app
from millstream.commands.train.run_folder import refuse_other_recipe
from millstream.commands.tune import curves_page
from millstream.core.presets import find_model
from millstream.models.registry import load_dit
from millstream.train.interrupt import Interrupt
from millstream.train.recipe import RECIPES
from millstream.train.rl.control import Evaluated
from millstream.train.rl.recipe import PolicyRecipe, read_policy_recipe

RECIPE = """
model = "wan-tiny"
weights = ["random:3"]
steps = 1
height = 32
width = 32
prompts = ["sea"]
prompts_per_step = 1
group = 2
chunks = 1
fork = [1, 1]
lr = 1e-3
evaluate_every = 1
evaluate_prompts = 1
samples = 1
[[rewards]]
kind = "motion"
"""


def tune(path: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["tune", str(path), "--device", "cpu", *words])
    return done.exit_code, done.output


def test_a_dry_run_says_what_it_would_do(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE)
    code, said = tune(tmp_path / "r.toml", "--dry-run")
    assert code == 0
    assert "1 prompts x 2 streams" in said
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("more", "file"), [("", "dit"), ("[lora]\nrank = 2\n", "lora.safetensors")])
def test_a_run_leaves_a_folder_and_weights_that_can_be_served(more: str, file: str, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    spec = find_model("wan-tiny")
    cpu = torch.device("cpu")
    path.write_text(RECIPE + more)
    code, said = tune(path)
    assert (code, said.splitlines()[-1]) == (0, str(tmp_path / "r" / file)), said
    left = {each.name for each in (tmp_path / "r").iterdir()}
    assert left >= {
        "recipe.toml",
        "run.json",
        "curve.jsonl",
        "evaluations.jsonl",
        "curves.html",
        "checkpoints",
        "samples",
    }
    assert (tmp_path / "r" / "samples" / "step-000001" / "0.mp4").stat().st_size > 0
    line = json.loads((tmp_path / "r" / "curve.jsonl").read_text())
    assert (line["ratio_off"] < 1e-5, line["fork_at"], line["left_out"]) == (True, 1, 0)
    loras = [(str(tmp_path / "r" / file), 1.0)] if more else []
    weights = ["random:3"] if more else [str(tmp_path / "r" / file)]
    tuned = load_dit(spec, weights, device=cpu, dtype=torch.float32, loras=loras)
    before = load_dit(spec, ["random:3"], device=cpu, dtype=torch.float32)
    assert not torch.equal(tuned.blocks[0].self_attn.q.weight, before.blocks[0].self_attn.q.weight)
    path.write_text(RECIPE + more + 'python = "x"\n')
    assert tune(path)[0] == 2


def test_what_cannot_be_is_said_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(RECIPE.replace('kind = "motion"', 'kind = "python"'))
    code, said = tune(path)
    assert code == 2
    assert said == 'error: a reward of kind "python" needs call\n'
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (
            'kind = "python"\ncall = "nowhere_at_all:f"',
            "'nowhere_at_all:f' cannot be loaded: No module named 'nowhere_at_all'",
        ),
        ('kind = "attributes"\nclassifier = "gone.safetensors"', "there is no classifier"),
        ('kind = "motion"', "there is no classifier"),
    ],
)
def test_a_dry_run_finds_functions_and_files_that_are_not_there(
    reward: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "r.toml"
    judge = 'judge = "judge/judge.safetensors"\n' if "motion" in reward else ""
    path.write_text(judge + RECIPE.replace("chunks = 1", "chunks = 5").replace('kind = "motion"', reward))
    code, heard = tune(path, "--dry-run")
    assert (code, said in heard) == (2, True), heard


def test_a_recipe_that_comes_with_the_package_is_pointed_to(tmp_path: Path) -> None:
    code, said = tune(tmp_path / "reward-brook-mini.toml", "--dry-run")
    assert (code, str(RECIPES / "reward-brook-mini.toml") in said) == (2, True), said
    assert "--help" in tune(tmp_path / "no-such.toml")[1]


def test_a_folder_that_cannot_be_written_is_one_line_and_so_is_one_of_another_recipe(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    out = tmp_path / "run"
    path.write_text(RECIPE)
    out.write_text("a file")
    code, said = tune(path, "--out", str(out))
    assert (code, f"{out} is not a folder; choose another --out" in said) == (2, True), said
    out.unlink()
    out.mkdir()
    (out / "recipe.toml").write_text(RECIPE + "seed = 2\n")
    code, said = tune(path, "--out", str(out))
    assert (code, "holds a run of another recipe" in said) == (2, True), said


@pytest.mark.slow
def test_a_run_that_is_stopped_says_that_it_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.toml"
    path.write_text(RECIPE.replace("steps = 1", "steps = 3"))
    monkeypatch.setattr(Interrupt, "__init__", lambda self, on_asked: setattr(self, "asked", True))
    code, said = tune(path)
    assert (code, "the same command goes on" in said) == (130, True), said


def test_the_page_shows_reward_and_judge_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('judge = "bundled"\n' + RECIPE)
    found = curves_page(read_policy_recipe(path), [Evaluated(0, -2.0, 0.5), Evaluated(5, 3.0, 0.4)])
    assert "<title>judge</title>" in found
    assert "-2.0000" in found
    path.write_text(RECIPE)
    assert "0.4000" not in curves_page(read_policy_recipe(path), [Evaluated(0, 1.0, 0.4)]), (
        "without a judge no number of it"
    )


def test_a_run_that_began_under_a_keys_old_name_goes_on_under_its_new_one(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text("ema = 0.5\n" + RECIPE)
    (tmp_path / "recipe.toml").write_text("average = 0.5\n" + RECIPE)
    refuse_other_recipe(tmp_path, path, PolicyRecipe.RENAMED)
