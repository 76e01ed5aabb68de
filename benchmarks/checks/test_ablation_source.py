"""An ablation without a whole run before it: Brook's own parts, a teacher that begins at its student, and
jobs at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from benchmarks.ablation import SHARED, Scale, each_alone, main, train, variants
from benchmarks.ablation_source import prepare
from millstream.core.presets import find_model
from millstream.models.brook.bundle import load_bundle
from millstream.models.brook.files import PATH
from millstream.train.checkpoint import read_checkpoint
from millstream.train.evaluate.classifier import JUDGE, load_classifier
from millstream.train.methods.flow import TextAndDiT
from millstream.train.plan import PoolPlan, RunPlan, read_plan
from millstream.train.recipe import RECIPES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
SCALE = Scale(
    ode_steps=2, teacher_steps=3, self_forcing_steps=2, flow_steps=2, streams=2, prompts=2, seconds=(2.0, 3.0)
)


def small_plan() -> RunPlan:
    plan = read_plan(RECIPES / "brook.toml")
    stages = tuple(replace(stage, batch=2, warm_up=1) for stage in plan.stages)
    pool = PoolPlan(clips=4, switches=2, latent_frames=12, size=64, wordings=2, batch=2)
    return replace(plan, compiled=False, pool=pool, stages=stages)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    prepare(small_plan(), folder, CPU, steps=2)
    return folder


def test_all_that_the_ablation_links_to_is_there(source: Path) -> None:
    assert {name for name in SHARED if (source / name).exists()} == set(SHARED)


def test_what_is_linked_to_is_replaced_and_never_written_to(source: Path, tmp_path: Path) -> None:
    linked = tmp_path / "vae-average.pt"
    linked.hardlink_to(source / "vae-average.pt")
    before = linked.read_bytes()
    prepare(small_plan(), source, CPU, steps=2)
    assert not linked.samefile(source / "vae-average.pt")
    assert linked.read_bytes() == before


def test_vae_and_judge_are_the_ones_that_come_with_the_package(source: Path) -> None:
    _, vae, _ = load_bundle(PATH, find_model("brook"), device=CPU, dtype=torch.float32)
    for name, kept in {"vae-average.pt": vae, "classifier-average.pt": load_classifier(JUDGE, CPU)}.items():
        found = read_checkpoint(source / name)
        assert found.keys() == kept.state_dict().keys()
        assert all(torch.equal(found[key], tensor) for key, tensor in kept.state_dict().items())


def test_the_teacher_begins_at_the_student_and_learns(source: Path) -> None:
    dit, _, words = load_bundle(PATH, find_model("brook"), device=CPU, dtype=torch.float32)
    student = TextAndDiT(words.model, dit).state_dict()
    teacher = read_checkpoint(source / "teacher-average.pt")
    assert teacher.keys() == student.keys()
    moved = torch.cat([(teacher[name] - student[name]).flatten() for name in student])
    size = torch.cat([tensor.flatten() for tensor in student.values()])
    assert 0 < moved.norm() < 0.1 * size.norm()


def test_a_variant_is_trained_from_it(source: Path, tmp_path: Path) -> None:
    plan = small_plan()
    variant = replace(plan, stages=variants(plan, SCALE)["diffusion forcing, flow"], checkpoint_every=10**9)
    weights = train(variant, source, None, tmp_path / "variant", CPU)
    load_bundle(weights, find_model("brook"), device=CPU, dtype=torch.float32)


def test_jobs_at_once_say_what_they_find_and_so_does_who_asked_for_them(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Trained and judged before: what a job does there is tested above."""
    dit, *_ = load_bundle(PATH, find_model("brook"), device=CPU, dtype=torch.float32)
    for seed in (3, 4):
        folder = tmp_path / f"diffusion-forcing-{seed}"
        folder.mkdir()
        torch.save(dit.state_dict(), folder / "ode-average.pt")
        (folder / "judged-past-at-100.json").write_text(json.dumps({"drift": seed / 10}))
    which = ["--only", "diffusion forcing", "--ways", "past at 100", "--seeds", 3, 4]
    asked = ["--run", source, "--out", tmp_path, *which, "--jobs", 2, "--report", ""]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["ablation", *map(str, asked)])
    main()
    said = [f'diffusion forcing, past at 100, seed {seed}: {{"drift": 0.{seed}}}' for seed in (3, 4)]
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(said * 2)


def test_a_job_that_fails_is_named() -> None:
    with pytest.raises(SystemExit, match=r"^error: teacher forcing of seed 3 failed"):
        each_alone(["--unheard-of"], [(3, "teacher forcing")], 2)
