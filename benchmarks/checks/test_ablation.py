"""The ablation's bookkeeping: what its variants differ in, what is kept, and what is said over seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.ablation import GOES_ON, NEARLY_NOISE, Scale, folder_of, judge, over_seeds, variants
from millstream.train.options import DMDOptions, FlowOptions, ODEOptions
from millstream.train.plan import read_plan
from millstream.train.recipe import RECIPES

pytestmark = pytest.mark.slow

SCALE = Scale(
    ode_steps=16,
    teacher_steps=5,
    self_forcing_steps=24,
    flow_steps=40,
    streams=8,
    prompts=2,
    seconds=(2.0, 3.0),
)


def test_variants_differ_in_the_stages_after_the_teacher_alone() -> None:
    found = variants(read_plan(RECIPES / "brook.toml"), SCALE)
    assert {tuple(stage.name for stage in stages[:3]) for stages in found.values()} == {
        ("vae", "classifier", "teacher")
    }
    assert {name: [stage.name for stage in stages[3:]] for name, stages in found.items()} == {
        "teacher forcing": ["ode"],
        "diffusion forcing": ["ode"],
        "diffusion forcing, faint": ["ode"],
        "diffusion forcing, fainter": ["ode"],
        "teacher forcing, matched": ["ode", "dmd"],
        "diffusion forcing, matched": ["ode", "dmd"],
        "diffusion forcing, matched, faint": ["ode", "dmd"],
        "diffusion forcing, matched, fainter": ["ode", "dmd"],
        "self-forcing": ["ode", "self-forcing"],
        "no initialisation": ["self-forcing"],
        "teacher forcing, flow": ["flow"],
        "diffusion forcing, flow": ["flow"],
    }
    clean = found["teacher forcing"][3]
    noisy = found["diffusion forcing"][3]
    assert noisy.options == clean.options | {"forcing": "diffusion", "context_shift": NEARLY_NOISE}
    assert found["diffusion forcing, faint"][3].choose(ODEOptions).context_shift < 1
    assert all(found[name][3] == clean for name in GOES_ON), "so that it can be taken over"
    given = found["diffusion forcing, matched"][4]
    own = found["self-forcing"][4]
    assert (given.steps, given.batch, given.lr) == (own.steps, own.batch, own.lr), "only the past differs"
    assert given.choose(DMDOptions) == DMDOptions(forcing="diffusion")
    many = [found[f"{forcing} forcing, flow"][3] for forcing in ("teacher", "diffusion")]
    assert [stage.choose(FlowOptions).forcing for stage in many] == ["teacher", "diffusion"]
    assert {(stage.method, stage.steps, stage.ema) for stage in many} == {("flow", 40, clean.ema)}
    assert {stage.choose(FlowOptions).shift for stage in many} == {1.0}, "only the past differs"
    assert (clean.steps, clean.warm_up, clean.options["teacher_steps"]) == (16, 2, 5)


def test_what_was_judged_is_not_judged_again(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "teacher forcing", 3)
    folder.mkdir()
    (folder / "judged.json").write_text(json.dumps({"drift": 0.25}))
    (folder / "judged-steps-4.json").write_text(json.dumps({"drift": 0.5}))
    weights = folder / "brook.safetensors"
    assert [judge(weights, way, {}, SCALE, "cpu") for way in ("", "steps 4")] == [
        {"drift": 0.25},
        {"drift": 0.5},
    ]


def test_seeds_are_said_together_with_their_spread() -> None:
    found = over_seeds({"one": [{"drift": 0.1}, {"drift": 0.2}, {"drift": 0.3}], "other": [{"drift": 0.1}]})
    assert found == {"one": {"drift": "0.200 ± 0.100"}, "other": {"drift": "0.100"}}
