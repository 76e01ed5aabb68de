"""`benchmarks.tune`: rows that are kept and go on elsewhere, the time that is counted, the table, and the
file that ships."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from benchmarks import report
from benchmarks.checks.small_models import SMALL_BROOK
from benchmarks.tune import COMPARED, CONTINUED, LONGER, SAMPLED, WAYS, all_rows, known_rows, main
from benchmarks.tuning.carried import write_brook, write_part
from benchmarks.tuning.rows import Rows, wins
from benchmarks.tuning.spent import POINTS, SpentTime
from millstream.core.presets import MODELS
from millstream.models.brook.bundle import BrookParts, WordEmbedder, load_bundle, save_bundle
from millstream.models.brook.vae import BrookVAE
from millstream.models.registry import load_model

CPU = torch.device("cpu")


def judged(thing: float, motion: float) -> list[dict[str, object]]:
    return [
        {
            "adherence": {"thing": thing, "motion": motion},
            "mean": 0.5,
            "flicker": 1.0,
            "edges": 1.0,
            "lost": 0.1,
        }
    ] * 2


def test_ways_are_compared_with_the_model_as_it_was(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.keep("before", {"judged": judged(0.5, 0.7)})
    for seed, thing in enumerate((0.6, 0.7)):
        spent = {"seconds": 60.0, "steps": 10, "streams": 80}
        rows.keep(f"grpo/{seed}", {"spent": spent, "judged": judged(thing, 0.8), "wall_s": 70.0})
    found = rows.table(tuple(WAYS), 3, known_rows(3))
    assert found["before"]["soon"]["weakest"] == pytest.approx(0.6)
    assert found["grpo"]["soon"]["points_better"]["thing"] == pytest.approx(15)
    assert [points["thing"] for points in found["grpo"]["soon"]["points_by_seed"]] == pytest.approx([10, 20])
    assert (found["grpo"]["soon"]["seeds"], found["grpo"]["steps"], found["grpo"]["wins"]) == (2, 10, False)
    assert found["wall_s"] == {"grpo/0": 70.0, "grpo/1": 70.0}
    assert set(found) == {"before", "grpo", "wall_s"} <= {"before", "wall_s", *WAYS}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"thing": 2.9}, False),
        ({"colour": -1.1}, False),
        ({"colour": -0.9}, True),
        ({"flicker": 0.1}, False),
        ({"edges": -5.1}, False),
    ],
)
def test_a_way_wins_by_the_weakest_attributes_if_nothing_is_paid_for_it(
    changed: dict[str, float], expected: bool
) -> None:
    soon = {
        "thing": 3.0,
        "motion": 3.5,
        "colour": 0.0,
        "weakest": 3.2,
        "mean": 1.0,
        "flicker": -1.0,
        "edges": -4.0,
        "lost": 0.0,
    } | changed
    for late in ({"lost": -0.5, "mean": -0.1}, {"lost": 0.5, "mean": 0.0}):
        assert wins({"soon": {"points_better": soon}, "late": {"points_better": late}}) is expected
    assert not wins({"soon": {"points_better": soon}}), "nobody looked at how it goes on"
    assert not wins({"soon": {"points_better": soon}, "late": {"points_better": {"lost": 0.1, "mean": -0.1}}})


def test_what_matters_most_is_done_first() -> None:
    rows = all_rows(3)
    assert len(set(rows)) == len(rows)
    assert set(rows) < set(known_rows(3))
    last_that_ships = max(rows.index(f"late/{LONGER}/{seed}") for seed in range(3))
    assert all(last_that_ships < rows.index(f"{way}/0") for way in COMPARED)
    assert all(rows.index(f"{CONTINUED}/{seed}") < rows.index(f"{LONGER}/{seed}") for seed in range(3))


def test_the_page_says_what_the_benchmark_compares_futures_with() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()
    (block,) = (
        part.partition("```")[0]
        for part in page.split("```toml\n")[1:]
        if part.startswith('algorithm = "grpo"')
    )
    assert msgspec.toml.decode(block.encode()) == SAMPLED | {"algorithm": "grpo"}


def test_steps_that_are_made_again_after_a_cut_are_counted_once(tmp_path: Path) -> None:
    line = {"reward": 1.0, "rollout_s": 1.0, "learn_s": 2.0, "phases": [["learn", 0, 1]], "kl_reached": None}
    path = tmp_path / "curve.jsonl"
    path.write_text("".join(json.dumps(line | {"step": step}) + "\n" for step in (1, 2, 3, 4)))
    spent = SpentTime(path)
    assert spent.seconds == 12
    spent.add(3, line | {"learn_s": 5.0})  # it went on from a checkpoint after the second
    assert spent.seconds == 3 + 3 + 6
    summary = spent.summary(8)
    assert (summary["steps"], summary["streams"], summary["learn_s"]) == (3, 24, 3.0)
    for step in range(4, 50):
        spent.add(step, line | {"reward": float(step)})
    curve = spent.curve()
    assert len(curve) <= POINTS
    assert curve[-1]["step"] == 49
    assert curve[0]["reward"] < curve[-1]["reward"]
    assert SpentTime(tmp_path / "none.jsonl").curve() == []


def small_bundle(path: Path, seed: int) -> Path:
    model = load_model(SMALL_BROOK, [f"random:{seed}"], device=CPU, dtype=torch.float32)
    words = model.text.embedder
    assert isinstance(model.vae, BrookVAE)
    assert isinstance(words, WordEmbedder)
    save_bundle(
        path,
        BrookParts(model.dit, model.vae, words.model),
        (),
        {"seed": seed, "stages": [{"name": "polish"}]},
        torch.float16,
    )
    return path


def test_a_tuned_file_travels_as_its_part_and_is_the_same_again(tmp_path: Path) -> None:
    """The shipped file equals the judged one to the bit, also after another load and save."""
    base, other = (small_bundle(tmp_path / f"{seed}.safetensors", seed) for seed in (3, 4))
    dit, _, _ = load_bundle(other, SMALL_BROOK, device=CPU, dtype=torch.float32)
    _, vae, words = load_bundle(base, SMALL_BROOK, device=CPU, dtype=torch.float32)
    tuned = tmp_path / "tuned.safetensors"
    part = tmp_path / "part.safetensors"
    again = tmp_path / "again.safetensors"
    save_bundle(tuned, BrookParts(dit, vae, words.model), (), {"tuned": True}, torch.float16)
    write_part(tuned, part, base)
    assert part.stat().st_size < tuned.stat().st_size
    write_brook(part, again, base)
    whole = load_file(tuned)
    assert whole.keys() == load_file(again).keys()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in load_file(again).items())
    resaved = tmp_path / "resaved.safetensors"
    loaded = load_bundle(again, SMALL_BROOK, device=CPU, dtype=torch.float32)
    save_bundle(resaved, BrookParts(loaded[0], loaded[1], loaded[2].model), (), {}, torch.float16)
    assert all(torch.equal(tensor, whole[name]) for name, tensor in load_file(resaved).items())
    with pytest.raises(AssertionError, match="more than its DiT"):
        write_part(other, part, base)


@pytest.fixture
def _narrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(MODELS, "brook", SMALL_BROOK)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")


@pytest.mark.slow
@pytest.mark.usefixtures("_narrow")
def test_a_run_goes_on_in_another_call_and_on_another_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = small_bundle(tmp_path / "base.safetensors", 3)
    common = [
        "--miniature",
        "--device",
        "cpu",
        "--minutes",
        "0",
        "--count",
        "2",
        "--seeds",
        "1",
        f'--set=weights=["{base}"]',
    ]
    here, there, brought = (tmp_path / name for name in ("here", "there", "brought"))

    def call(out: Path, rows: str, *more: str) -> str:
        main([*common, "--out", str(out), "--only", rows, *more])
        return capsys.readouterr().out

    first = f"judge,second,before,{CONTINUED}/0"
    assert "judge: there is more to do" in call(here, first, "--slice", "0")
    assert "step 1," in call(here, first)
    assert call(here, first, "--bring", str(brought)) == "", "all of it is done"
    assert {path.name for path in brought.iterdir()} == {
        "rows.json", "tune-miniature.json", "judge.classifier.safetensors", "second.classifier.safetensors",
    }  # fmt: skip
    said = call(here, f"{LONGER}/0", "--longer", "0", "--bring", str(brought))
    assert "step 2," in said, "it goes on from where the shorter run was"
    tuned = load_file(here / f"{LONGER}-0" / "brook.safetensors")
    call(
        there,
        f"{first},{LONGER}/0,late/before,late/{LONGER}/0",
        "--from",
        str(brought),
        "--late",
        "3",
        "--late-count",
        "2",
    )
    arrived = load_file(there / f"{LONGER}-0" / "brook.safetensors")
    assert all(torch.equal(tensor, tuned[name]) for name, tensor in arrived.items())
    with safe_open(there / f"{LONGER}-0" / "brook.safetensors", framework="pt") as file:
        stages = json.loads(file.metadata()["card"])["stages"]
    assert [stage["name"] for stage in stages[-2:]] == ["polish", "tuned"], (
        "how the file was trained that it was tuned from"
    )
    assert stages[-1]["steps"] == 2
    measured = json.loads((tmp_path / "results" / "tune-miniature.json").read_text())["measured"]
    assert measured[LONGER]["steps"] == 2
    assert measured[LONGER]["late"]["seeds"] == 1
    assert len(measured[CONTINUED]["curves"][0]) == 1
